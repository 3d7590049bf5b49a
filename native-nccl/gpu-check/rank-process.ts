/** One rank of the trial of two ranks on one device; prints what it found as JSON, last line. */
import { ReduceOp, World } from 'lockstep';
import { asError } from '../../src/core/errors';
import type { Backend } from '../../src/backend/backend';
import { DTYPES, allocateBuffer, isSameBits, viewBuffer, type DType, type HostBuffer } from '../../src/core/dtype';
import { filled } from '../../tests/helpers/fill';
import { expect, failureOf, isStandIn } from './bench';
import { trainWithDdp, trainWithZero } from './digits-steps';

const [, , task, numSteps] = process.argv;
const COUNT = 5003;
const TIMEOUT_MS = isStandIn ? 500 : 1500;

/** Whole numbers, so that there is one right answer. */
async function collectives({ group, rank }: World): Promise<void> {
  const { backend } = group;
  for (const dtype of DTYPES) {
    const [own, other] = [filled(dtype, COUNT, 2, rank), filled(dtype, COUNT, 2, 1 - rank)];
    const both = rank === 0 ? [own, other] : [other, own];
    const gathered = allocateBuffer(dtype, 2 * COUNT);
    await backend.allGather(own, gathered);
    expect(
      both.every((part, r) => isSameBits(viewBuffer(gathered, r * COUNT, COUNT), part)),
      `allGather of ${dtype}`,
    );
    const received = allocateBuffer(dtype, COUNT);
    await backend.batch([
      { op: 'send', data: own, peer: 1 - rank },
      { op: 'recv', data: received, peer: 1 - rank },
    ]);
    expect(isSameBits(received, other), `an exchange of ${dtype}`);
    const copied = own.slice() as typeof own;
    await backend.broadcast(copied, 1);
    expect(isSameBits(copied, both[1] as typeof own), `broadcast of ${dtype}`);
    await moveParts(backend, dtype, rank);
    const largest = own.slice() as typeof own;
    await backend.allReduce(largest, ReduceOp.Max);
    await expectLargest(largest, both, dtype);
  }
}

/** Each rank's buffer has a part for each rank. */
async function moveParts(backend: Backend, dtype: DType, rank: number): Promise<void> {
  const part = COUNT;
  const whole = (of: number): HostBuffer => filled(dtype, 2 * part, 2, of);
  const partOf = (of: number, index: number): HostBuffer => viewBuffer(whole(of), index * part, part);
  const hasParts = (found: HostBuffer, expected: readonly HostBuffer[]): boolean =>
    expected.every((each, index) => isSameBits(viewBuffer(found, index * part, part), each));

  const exchanged = allocateBuffer(dtype, 2 * part);
  await backend.allToAll(whole(rank), exchanged);
  expect(hasParts(exchanged, [partOf(0, rank), partOf(1, rank)]), `allToAll of ${dtype}`);
  const scattered = allocateBuffer(dtype, part);
  await backend.scatter(rank === 1 ? whole(1) : undefined, scattered, 1);
  expect(isSameBits(scattered, partOf(1, rank)), `scatter of ${dtype}`);
  const gathered = rank === 1 ? allocateBuffer(dtype, 2 * part) : undefined;
  await backend.gather(partOf(rank, 0), gathered, 1);
  expect(gathered === undefined || hasParts(gathered, [partOf(0, 0), partOf(1, 0)]), `gather of ${dtype}`);
}

async function expectLargest(
  found: ArrayLike<number | bigint>,
  both: readonly ArrayLike<number | bigint>[],
  dtype: string,
): Promise<void> {
  // of 16-bit floats, which are not negative here, the bits have the order of the values
  const isRight = Array.from(found).every((value, i) => {
    const [a, b] = both.map((buffer) => buffer[i] as number) as [number, number];
    return value === (a > b ? a : b);
  });
  expect(isRight, `allReduce Max of ${dtype}`);
}

async function train(world: World): Promise<object> {
  await collectives(world);
  const ddp = await trainWithDdp(world, Number(numSteps));
  const zero = await trainWithZero(world, 1, { stage: 2, shardDevice: 'cuda' });
  const text = (values: Float32Array): string => Buffer.from(values.buffer).toString('base64');
  return { losses: ddp.losses, ddp: text(ddp.parameters), zero: text(zero.parameters) };
}

/** Rank 1 does not come in time: NCCL's kernel of rank 0 is on the device and waits for it. */
async function timeOut({ group, rank }: World): Promise<object> {
  const data = new Float32Array(COUNT);
  if (rank === 1) await new Promise((settle) => setTimeout(settle, 2 * TIMEOUT_MS));
  const startedMs = performance.now();
  const error = await failureOf(async () => group.backend.allReduce(data, ReduceOp.Sum, { timeoutMs: TIMEOUT_MS }));
  return { rank, name: error.name, message: error.message, afterMs: performance.now() - startedMs };
}

async function main(): Promise<void> {
  const world = await World.init();
  let result: object;
  try {
    result = await (task === 'train' ? train(world) : timeOut(world));
  } catch (error) {
    world.abort(asError(error));
    throw error;
  } finally {
    await world.close();
  }
  process.stdout.write(`\n${JSON.stringify(result)}\n`);
}

void main();
