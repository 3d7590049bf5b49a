/** How long things take: data, not checks. They fail only if what is timed fails. */
import { AdamW, ReduceOp, Tensor } from 'lockstep';
import type { DeviceBuffer } from '../../../src/core/device-buffer';
import type { NcclOperation } from '../../../src/backend/nccl/addon';
import { WAIT_MS, expect, isStandIn, type Bench } from '../bench';
import type { Check } from '../check';

const LARGE_BYTES = isStandIn ? 2 ** 20 : 2 ** 28;
const REPEATS = isStandIn ? 3 : 10;
const SMALL_CALLS = isStandIn ? 100 : 1000;

async function timed(action: () => unknown): Promise<number> {
  const startedMs = performance.now();
  await action();
  return performance.now() - startedMs;
}

/** The time of each of some repeats, one after the other; the first is not counted. */
async function repeated(
  action: () => Promise<unknown>,
): Promise<{ readonly medianMs: number; readonly bestMs: number }> {
  await action();
  const times: number[] = [];
  for (let repeat = 0; repeat < REPEATS; repeat++) times.push(await timed(action));
  times.sort((a, b) => a - b);
  return { medianMs: times[Math.floor(REPEATS / 2)] as number, bestMs: times[0] as number };
}

function noteRate(
  bench: Bench,
  name: string,
  bytes: number,
  { medianMs, bestMs }: Awaited<ReturnType<typeof repeated>>,
): void {
  bench.note(`${name} medianMs`, medianMs);
  bench.note(`${name} bestGBs`, bytes / bestMs / 1e6);
}

async function transfers(bench: Bench): Promise<void> {
  const { addon } = bench;
  const block = addon.allocate(bench.device(), LARGE_BYTES);
  const host = new Uint8Array(LARGE_BYTES).fill(1);
  noteRate(bench, 'upload', LARGE_BYTES, await repeated(() => addon.upload(block, 0, host, WAIT_MS)));
  noteRate(bench, 'download', LARGE_BYTES, await repeated(() => addon.download(block, 0, host, WAIT_MS)));
  const target = addon.allocate(bench.device(), LARGE_BYTES);
  const copy = (): Promise<void> => {
    addon.copy(target, 0, block, 0, LARGE_BYTES);
    return addon.synchronize(bench.device(), WAIT_MS);
  };
  noteRate(bench, 'copy on the device, read and written', 2 * LARGE_BYTES, await repeated(copy));
  addon.release(block);
  addon.release(target);
}

async function collectives(bench: Bench): Promise<void> {
  const { addon } = bench;
  const communicator = await bench.communicator();
  const block = addon.allocate(bench.device(), LARGE_BYTES);
  const operand = { block, byteOffset: 0 };
  const run = (count: number): Promise<void> => {
    const operation: NcclOperation = {
      kind: 'allReduce',
      count,
      dtype: 'float32',
      send: operand,
      recv: operand,
      op: 'sum',
    };
    return addon.collective(communicator, [operation], { label: 'timing', timeoutMs: WAIT_MS });
  };
  noteRate(bench, 'allReduce at size 1', LARGE_BYTES, await repeated(() => run(LARGE_BYTES / 4)));
  await run(1024);
  const works: Promise<void>[] = [];
  const issuedMs = await timed(() => {
    for (let call = 0; call < SMALL_CALLS; call++) works.push(run(1024));
  });
  const restMs = await timed(() => Promise.all(works));
  bench.note('collective, in JavaScript, us', (1000 * issuedMs) / SMALL_CALLS);
  bench.note('collective, issued together, us each', (1000 * (issuedMs + restMs)) / SMALL_CALLS);
  const { medianMs } = await repeated(() => run(1024));
  bench.note('collective, awaited, us', 1000 * medianMs);
  addon.release(block);
}

async function backendCalls(bench: Bench): Promise<void> {
  const { backend } = (await bench.world()).group;
  const device = await bench.backendDevice();
  const onHost = new Float32Array(1024);
  const onDevice = device.allocate('float32', 1024);
  await device.upload(onHost, onDevice);
  const host = await repeated(async () => backend.allReduce(onHost, ReduceOp.Sum));
  bench.note('allReduce of 4 KiB on the host, us', 1000 * host.medianMs);
  bench.note(
    'allReduce of 4 KiB on the device, us',
    1000 * (await repeated(async () => backend.allReduce(onDevice, ReduceOp.Sum))).medianMs,
  );
  const large = new Float32Array(LARGE_BYTES / 4);
  noteRate(
    bench,
    'allReduce of host memory',
    LARGE_BYTES,
    await repeated(async () => backend.allReduce(large, ReduceOp.Sum)),
  );
  onDevice.dispose();
}

/** Reads parameter, gradient and both averages, writes all but the gradient: 28 bytes an element. */
async function adamW(bench: Bench): Promise<void> {
  const device = await bench.backendDevice();
  const length = LARGE_BYTES / 4;
  const optimizer = new AdamW([Tensor.zeros([1], { requiresGrad: true })]);
  const update = optimizer.flatUpdate(optimizer.settingsOf(0), 1);
  const zeros = new Float32Array(length);
  const buffers: DeviceBuffer[] = [];
  for (let index = 0; index < 4; index++) {
    const buffer = device.allocate('float32', length);
    await device.upload(zeros, buffer);
    buffers.push(buffer);
  }
  const [parameter, gradient, expAvg, expAvgSq] = buffers as [DeviceBuffer, DeviceBuffer, DeviceBuffer, DeviceBuffer];
  const first = parameter.view(0, 1);
  const found = new Float32Array(1);
  const steps = 10; // so that the wait at the end weighs little
  const run = async (): Promise<void> => {
    for (let step = 0; step < steps; step++)
      device.update(update, { parameter, gradient, state: { expAvg, expAvgSq } });
    await device.download(first, found);
  };
  noteRate(bench, `AdamW, ${steps} steps of ${length} elements`, steps * 28 * length, await repeated(run));
  expect(found[0] === 0, `a step without gradients gave ${found[0]}`);
  for (const buffer of [...buffers, first]) buffer.dispose();
}

async function launches(bench: Bench): Promise<void> {
  const device = await bench.backendDevice();
  const [a, b] = [device.allocate('float32', 1024), device.allocate('float32', 1024)];
  await device.upload(new Float32Array(1024), a);
  const issuedMs = await timed(() => {
    for (let call = 0; call < SMALL_CALLS; call++) device.copy(a, b);
  });
  const restMs = await timed(() => device.download(b, new Float32Array(1024)));
  bench.note('small copy, in JavaScript, us', (1000 * issuedMs) / SMALL_CALLS);
  bench.note('small copy, us each', (1000 * (issuedMs + restMs)) / SMALL_CALLS);
  for (const buffer of [a, b]) buffer.dispose();
}

export const timingChecks: readonly Check[] = [
  { name: 'transfers', run: transfers },
  { name: 'collectives of the addon', run: collectives },
  { name: 'collectives of the backend', run: backendCalls },
  { name: 'fused AdamW', run: adamW },
  { name: 'small commands', run: launches },
];
