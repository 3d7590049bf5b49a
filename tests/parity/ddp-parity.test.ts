/**
 * DDP is the same training as by hand: bit for bit the reduction in rank order of the ranks' own gradients, and within a
 * stated tolerance one process on the whole batch.
 */
import { ReduceOp } from '../../src/core/reduce-op';
import { bf16CompressHook } from '../../src/ddp/comm-hooks';
import { DistributedDataParallel, type DistributedDataParallelOptions } from '../../src/ddp/ddp';
import { GradSyncStrategy } from '../../src/ddp/grad-sync-strategy';
import { AdamW } from '../../src/optim/adam';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { runWorld } from '../../src/testing/index';
import type { MockBackend } from '../../src/backend/mock/mock-backend';
import { count } from '../helpers/counts';
import { Mlp, batchOf, flat, lossOf } from '../unit/ddp/models';

const WORLD_SIZES = [1, 2, 3, 4, 7];
const STEPS = 5;
const GLOBAL_BATCH = 84; // divides by every world size
const OPTIMIZER = { lr: 0.01, weightDecay: 0.1 };

type Batch = ReturnType<typeof batchOf>;
const batches: readonly Batch[] = Array.from({ length: STEPS }, (_unused, step) => batchOf(100 + step, GLOBAL_BATCH));

/** The samples of `rank` in `step`: the whole batch cut in equal parts. */
function partOf(step: number, rank: number, worldSize: number): { x: Tensor; labels: Tensor } {
  const { x, labels } = batches[step] as Batch;
  const size = GLOBAL_BATCH / worldSize;
  return { x: x.slice(0, rank * size, (rank + 1) * size), labels: labels.slice(0, rank * size, (rank + 1) * size) };
}

async function trainWithDdp(world: World, options: DistributedDataParallelOptions): Promise<number[]> {
  const ddp = new DistributedDataParallel(new Mlp(world.rank), world.group, options);
  const optimizer = new AdamW(ddp.parameters(), OPTIMIZER);
  for (let step = 0; step < STEPS; step++) {
    await (await lossOf(ddp, partOf(step, world.rank, world.worldSize))).backward();
    await ddp.syncGradients();
    await optimizer.clipGradNorm(0.5);
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return flat(ddp.parameters());
}

/** The same training without DDP: every rank's gradients one after the other, summed in rank order by a plain loop. */
async function computeByHand(worldSize: number): Promise<number[]> {
  const model = new Mlp(0);
  const optimizer = new AdamW(model.parameters(), OPTIMIZER);
  for (let step = 0; step < STEPS; step++) {
    const perRank: Float32Array[][] = [];
    for (let rank = 0; rank < worldSize; rank++) {
      await (await lossOf(model, partOf(step, rank, worldSize))).backward();
      perRank.push(model.parameters().map(({ grad }) => Float32Array.from(grad?.data as Float32Array)));
      model.zeroGrad();
    }
    model.parameters().forEach((parameter, index) => {
      const sum = Float32Array.from(perRank[0]?.[index] as Float32Array);
      for (let rank = 1; rank < worldSize; rank++) {
        for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) + (perRank[rank]?.[index]?.[i] as number);
      }
      for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) / worldSize;
      parameter.grad = Tensor.wrap(sum, parameter.shape);
    });
    await optimizer.clipGradNorm(0.5);
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return flat(model.parameters());
}

const byHand = new Map<number, Promise<number[]>>();

/** The same for all options of DDP, so computed once. */
function trainByHand(worldSize: number): Promise<number[]> {
  const trained = byHand.get(worldSize) ?? computeByHand(worldSize);
  byHand.set(worldSize, trained);
  return trained;
}

describe.each(WORLD_SIZES)('on %i ranks', (worldSize) => {
  test.each<[string, DistributedDataParallelOptions]>([
    ['the defaults', {}],
    ['one bucket a parameter', { bucketCapMb: 1e-6 }],
    ['buckets of a few parameters', { bucketCapMb: 1e-4 }],
    ['gradients as bucket views', { gradientAsBucketView: true, bucketCapMb: 1e-4 }],
    ['findUnusedParameters', { findUnusedParameters: true }],
    ['the Synchronous strategy', { gradSync: GradSyncStrategy.Synchronous }],
  ])('DDP with %s has the bits of the reduction by hand, on every rank, in portable mode', async (_name, options) => {
    const expected = await trainByHand(worldSize);
    const results = await runWorld(worldSize, (world) => trainWithDdp(world, options), { portable: true });
    for (const parameters of results) expect(parameters).toEqual(expected);
  });

  test('DDP is one process on the whole batch, to 2e-6', async () => {
    // AdamW divides by the root of the second moment, so a rounding difference of one part in 1e7 in a gradient becomes
    // about as large a part of lr = 0.01 a step
    const [parameters] = await runWorld(worldSize, (world) => trainWithDdp(world, {}));
    const single = await trainByHand(1);
    const distance = Math.max(...single.map((value, i) => Math.abs(value - (parameters?.[i] as number))));
    expect(distance).toBeLessThan(2e-6);
  });

  test('each step sends 2(N-1)/N of the model per rank', async () => {
    await runWorld(worldSize, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group);
      const backend = world.group.backend as MockBackend;
      await (await lossOf(ddp, partOf(0, world.rank, worldSize))).backward();
      await ddp.syncGradients(); // the first step also sends the ready order
      backend.resetLedger();
      ddp.zeroGrad();
      await (await lossOf(ddp, partOf(1, world.rank, worldSize))).backward();
      await ddp.syncGradients();
      const modelBytes = 4 * ddp.parameters().reduce((total, { size }) => total + size, 0);
      const sent = Object.values(backend.ledger).reduce((total, { bytes }) => total + bytes, 0);
      expect(sent).toBeCloseTo((2 * (worldSize - 1) * modelBytes) / worldSize, 6);
    });
  });
});

describe('schedules', () => {
  /** Ways of using DDP; each schedule takes the next one. */
  const variants: readonly DistributedDataParallelOptions[] = [
    { bucketCapMb: 1e-4 },
    { bucketCapMb: 1e-4, gradientAsBucketView: true, findUnusedParameters: true },
    { gradSync: GradSyncStrategy.Synchronous },
  ];

  /** Accumulation, a compressing hook, uneven inputs, and a metric of the user's own between the steps. */
  async function program(world: World, options: DistributedDataParallelOptions): Promise<number[]> {
    const ddp = new DistributedDataParallel(new Mlp(world.rank), world.group, options);
    if (options.findUnusedParameters === true) ddp.registerCommHook(bf16CompressHook);
    const optimizer = new AdamW(ddp.parameters(), OPTIMIZER);
    const metrics: number[] = [];
    const step = async (number: number): Promise<void> => {
      const batch = batchOf(10 * number + world.rank, 2);
      await ddp.noSync(async () => (await lossOf(ddp, batch)).backward());
      const loss = await lossOf(ddp, batch);
      await loss.backward();
      const mean = Tensor.from([loss.item()]);
      const metric = world.group.allReduce(mean, ReduceOp.Average);
      await ddp.syncGradients();
      await optimizer.step();
      optimizer.zeroGrad();
      await metric;
      metrics.push(mean.item());
    };
    await step(0);
    await step(1);
    await ddp.join(async () => {
      for (let number = 2; number < 2 + (world.rank % 2); number++) {
        await (await lossOf(ddp, batchOf(10 * number + world.rank, 2))).backward();
        await ddp.syncGradients();
        await optimizer.step();
        optimizer.zeroGrad();
      }
    });
    return [...flat(ddp.parameters()), ...metrics];
  }

  test('no schedule changes a bit, in portable mode', async () => {
    const expected = await Promise.all(
      variants.map((options) => runWorld(3, (world) => program(world, options), { portable: true })),
    );
    const schedules = count('random schedules of DDP', 80, 1000);
    for (let seed = 0; seed < schedules; seed++) {
      const variant = seed % variants.length;
      const options = variants[variant] as DistributedDataParallelOptions;
      const run = runWorld(3, (world) => program(world, options), { schedule: 'random', seed, portable: true });
      expect({ seed, results: await run }).toEqual({ seed, results: expected[variant] });
    }
  });
});
