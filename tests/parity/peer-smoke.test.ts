/**
 * The smoke tests that later versions of the Rust crate axonml-distributed have, under their names, and what it never
 * tested: values on several ranks, sizes that do not divide, a synchronizer with more than one bucket.
 */
import {
  allReduceMax,
  allReduceMean,
  allReduceMin,
  allReduceSum,
  barrier,
  broadcast,
  crossEntropy,
  DistributedDataParallel,
  gatherTensor,
  Generator,
  GradientSynchronizer,
  GradSyncStrategy,
  Linear,
  type ProcessGroup,
  reduceScatterSum,
  scatterTensor,
  Sequential,
  SGD,
  Tensor,
} from '../../src/index';
import { runWorld } from '../../src/testing/index';

const constant = (length: number, value: number): Tensor => Tensor.full([length], value);

describe('smoke tests, on several ranks', () => {
  test.each<
    [string, number, (self: number) => Tensor, (tensor: Tensor, group: ProcessGroup) => PromiseLike<unknown>, number[]]
  >([
    [
      'all_reduce_sum_across_four_ranks',
      4,
      (self) => constant(8, self + 1),
      allReduceSum,
      new Array<number>(8).fill(10),
    ],
    ['all_reduce_mean_across_three_ranks', 3, (self) => constant(5, 3 * self), allReduceMean, [3, 3, 3, 3, 3]],
    ['all_reduce_min_across_four_ranks', 4, (self) => constant(3, 10 - self), allReduceMin, [7, 7, 7]],
    ['all_reduce_max_across_four_ranks', 4, (self) => constant(3, self), allReduceMax, [3, 3, 3]],
    ['broadcast_from_rank_zero', 3, (self) => constant(6, 100 * self), broadcast, [0, 0, 0, 0, 0, 0]],
  ])('%s', async (_name, size, make, collective, expected) => {
    const results = await runWorld(size, async ({ group }) => {
      const tensor = make(group.rank);
      await collective(tensor, group);
      return tensor.toArray();
    });
    expect(results).toEqual(new Array<number[]>(size).fill(expected));
  });

  /** An MLP without activation, with weights that differ by rank. */
  const mlp = (seed: number): Sequential => {
    const generator = new Generator(seed);
    return new Sequential(new Linear(4, 8, { generator }), new Linear(8, 3, { generator }));
  };
  const weightsOf = (module: Sequential): number[] =>
    module.parameters().flatMap((parameter) => [...(parameter.data as Float32Array)]);

  test('sync_parameters_broadcasts_rank_zero_weights, bit for bit', async () => {
    const weights = await runWorld(2, async ({ group }) => {
      const ddp = new DistributedDataParallel(mlp(group.rank), group);
      await ddp.syncParameters();
      return weightsOf(ddp.module);
    });
    expect(weights).toEqual([weightsOf(mlp(0)), weightsOf(mlp(0))]);
    expect(weightsOf(mlp(1))).not.toEqual(weights[1]);
  });

  test('ddp_two_ranks_converge_to_same_weights, bit for bit', async () => {
    const labels = [
      [0, 1],
      [2, 0],
    ];
    const weights = await runWorld(2, async ({ group }) => {
      const ddp = new DistributedDataParallel(mlp(group.rank), group);
      const optimizer = new SGD(ddp.parameters(), { lr: 0.01 });
      await ddp.syncParameters();
      const inputs = Tensor.randn([2, 4], { generator: new Generator(50 + group.rank) });
      const loss = crossEntropy(await ddp.forward(inputs), Tensor.from(Int32Array.from(labels[group.rank] ?? []), [2]));
      await loss.backward();
      await ddp.syncGradients();
      await optimizer.step();
      return weightsOf(ddp.module);
    });
    expect(weights[1]).toEqual(weights[0]);
    expect(weights[0]).not.toEqual(weightsOf(mlp(0)));
  });
});

describe('what the crate never tested, on three ranks', () => {
  test('a tensor that is scattered and gathered along any dimension is itself again', async () => {
    const values = Float32Array.from({ length: 54 }, (_unused, i) => i);
    await runWorld(3, async ({ group }) => {
      const whole = Tensor.from(values, [3, 6, 3]);
      for (const dim of [0, 1, 2, -1]) {
        const slice = await scatterTensor(whole, dim, group);
        expect(slice.size).toBe(18);
        const gathered = await gatherTensor(slice, dim, group);
        expect(gathered.toArray()).toEqual(whole.toArray());
      }
    });
  });

  test('sizes that do not divide are refused with the sizes, not cut', async () => {
    await runWorld(2, async ({ group }) => {
      await expect(scatterTensor(Tensor.ones([5]), 0, group)).rejects.toThrow(/5[^]*2|2[^]*5/);
      await expect(reduceScatterSum(Tensor.ones([5, 10]), group)).rejects.toThrow(/5[^]*2|2[^]*5/);
      await barrier(group);
    });
  });

  test('a synchronizer whose gradients do not fit one bucket loses none of them', async () => {
    const results = await runWorld(3, async ({ group }) => {
      const sync = new GradientSynchronizer(GradSyncStrategy.Synchronous, 4);
      sync.prepare(5);
      for (let index = 0; index < 5; index++) sync.addGradient(index, constant(index + 1, group.rank + index));
      await sync.syncAll(group);
      return sync.gradients().map((gradient) => gradient?.toArray());
    });
    const expected = [1, 2, 3, 4, 5].map((length) => new Array<number>(length).fill(length));
    expect(results).toEqual([expected, expected, expected]);
  });

  test('an index that was not announced is refused', () => {
    const sync = new GradientSynchronizer(GradSyncStrategy.Synchronous, 4);
    expect(() => sync.addGradient(0, Tensor.from([1]))).toThrow(/prepare/);
    sync.prepare(2);
    expect(() => sync.addGradient(2, Tensor.from([1]))).toThrow(/2/);
  });
});
