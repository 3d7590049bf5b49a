/** The mock's all-reduce: bandwidth against a bare loop, latency per call. */
import { ReduceOp, type Backend } from 'lockstep';
import { MockBackend } from 'lockstep';
import { compare, describe, report, summarise, time } from './measure';

const RANKS = 4;
const LARGE_ELEMENTS = (25 * 1024 * 1024) / 4;
const SMALL_CALLS = 5000;

type Checks = 'all' | 'order';

export async function benchMockCollectives(): Promise<void> {
  for (const checks of ['order', 'all'] as const) await benchLarge(checks);
  await benchSmall('order', false, 20);
  await benchSmall('all', true, 60);
}

async function benchLarge(checks: Checks): Promise<void> {
  const world = MockBackend.createWorld(RANKS, { checks });
  const buffers = world.map(() => new Float32Array(LARGE_ELEMENTS).fill(1));
  const scratch = new Float32Array(LARGE_ELEMENTS);
  const result = await compare(
    () => onEveryRank(world, (backend, rank) => backend.allReduce(buffers[rank] as Float32Array, ReduceOp.Average)),
    () => sumAndCopyBack(buffers, scratch),
    15,
  );
  await closeAll(world);
  report(
    `all-reduce of ${RANKS} x 25 MiB float32, checks '${checks}', to a bare loop`,
    `${result.ratio.toFixed(2)}x (${describe(result.subject)})`,
    'at most 2x',
  );
}

/** What the reduction costs without a library: one pass that sums, one copy back to each array. */
function sumAndCopyBack(buffers: readonly Float32Array[], sum: Float32Array): void {
  const [a, b, c, d] = buffers as [Float32Array, Float32Array, Float32Array, Float32Array];
  for (let i = 0; i < sum.length; i++) {
    sum[i] = ((a[i] as number) + (b[i] as number) + (c[i] as number) + (d[i] as number)) / RANKS;
  }
  for (const buffer of buffers) buffer.set(sum);
}

async function benchSmall(checks: Checks, sourceLines: boolean, targetUs: number): Promise<void> {
  const samplesMs: number[] = [];
  for (let round = -1; round < 7; round++) {
    const world = MockBackend.createWorld(RANKS, { checks, sourceLines });
    const elapsedMs = await time(() =>
      onEveryRank(world, async (backend) => {
        const value = new Float32Array(1);
        for (let call = 0; call < SMALL_CALLS; call++) await backend.allReduce(value, ReduceOp.Average);
      }),
    );
    await closeAll(world);
    if (round >= 0) samplesMs.push(elapsedMs / SMALL_CALLS);
  }
  const { medianMs, spread } = summarise(samplesMs);
  report(
    `4-byte all-reduce on ${RANKS} ranks, checks '${checks}', source lines ${sourceLines ? 'on' : 'off'}`,
    `${(1000 * medianMs).toFixed(1)} us ±${(100 * spread).toFixed(0)} %`,
    `under ${targetUs} us`,
  );
}

async function onEveryRank(
  world: readonly MockBackend[],
  program: (backend: Backend, rank: number) => PromiseLike<void>,
): Promise<void> {
  await Promise.all(world.map((backend, rank) => backend.run(async () => program(backend, rank))));
}

async function closeAll(world: readonly MockBackend[]): Promise<void> {
  await Promise.all(world.map((backend) => backend.close()));
}
