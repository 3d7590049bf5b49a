import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import { ReduceOp } from '../../../src/core/reduce-op';
import { bf16CompressHook, fp16CompressHook, type CommHook } from '../../../src/ddp/comm-hooks';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { batchOf, gradientsOf, lossOf, Mlp, runPortable } from './models';

const RANKS = 3;

async function localGradients(): Promise<number[][]> {
  return Promise.all(
    Array.from({ length: RANKS }, async (_unused, rank) => {
      const model = new Mlp();
      await (await lossOf(model, batchOf(rank, 4))).backward();
      return gradientsOf(model);
    }),
  );
}

async function averagedWith(hook: CommHook): Promise<number[][]> {
  return runPortable(RANKS, async (world) => {
    const ddp = new DistributedDataParallel(new Mlp(), world.group);
    ddp.registerCommHook(hook);
    await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
    await ddp.syncGradients();
    return gradientsOf(ddp);
  });
}

test.each([
  ['bf16CompressHook', bf16CompressHook, BFloat16Buffer],
  ['fp16CompressHook', fp16CompressHook, Float16Buffer],
] as const)('%s rounds each gradient once, sums in float32 and rounds once more', async (_name, hook, Half) => {
  const rounded = (await localGradients()).map((gradients) => Half.from(gradients).toFloat32());
  const expected = Half.from(
    Array.from(rounded[0] as Float32Array, (_unused, i) => {
      const sum = rounded.reduce((total, row) => Math.fround(total + (row[i] as number)), 0);
      return Math.fround(sum / RANKS);
    }),
  ).toFloat32();
  for (const gradients of await averagedWith(hook)) expect(gradients).toEqual(Array.from(expected));
});

test("a user's own hook sees every bucket once, in order, and its result becomes the gradients", async () => {
  const seen = await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Mlp(), world.group, { bucketCapMb: 0.0001 });
    const buckets: [number, boolean, number][] = [];
    ddp.registerCommHook(async (bucket, group) => {
      buckets.push([bucket.index, bucket.isLast, bucket.parameters.length]);
      await group.allReduce(bucket.tensor, ReduceOp.Max);
    });
    await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
    await ddp.syncGradients();
    return { buckets, gradients: gradientsOf(ddp) };
  });
  const local = (await localGradients()).slice(0, 2) as [number[], number[]];
  for (const { buckets, gradients } of seen) {
    expect(buckets).toEqual([
      [0, false, 2],
      [1, true, 2],
    ]);
    expect(gradients).toEqual(local[0].map((value, i) => Math.max(value, local[1][i] as number)));
  }
});

test('a hook that rejects ends the step with its error', async () => {
  await runPortable(1, async (world) => {
    const ddp = new DistributedDataParallel(new Mlp(), world.group);
    ddp.registerCommHook(() => Promise.reject(new Error('no codebook')));
    await (await lossOf(ddp, batchOf(0, 4))).backward();
    await expect(ddp.syncGradients()).rejects.toThrow('no codebook');
    expect(() => ddp.registerCommHook('bf16' as never)).toThrow('expected a function of (bucket, group), got string');
  });
});
