/**
 * The examples of the README of the Rust crate axonml-distributed 0.2.4, under the same headings, as a user of Lockstep
 * writes them. Where one leans on a fault of the crate (a group of ranks that do not exist), it runs here as it should.
 */
import {
  allGather,
  allReduceMean,
  allReduceSum,
  AdamW,
  barrier,
  broadcast,
  crossEntropy,
  DistributedDataParallel,
  Generator,
  GradientBucket,
  GradientSynchronizer,
  GradSyncStrategy,
  InvalidArgumentError,
  isMainProcess,
  Linear,
  MockBackend,
  ProcessGroup,
  rank,
  ReduceOp,
  syncGradient,
  syncGradients,
  Tensor,
  World,
  worldSize,
} from '../../src/index';
import { runWorld } from '../../src/testing/index';

/** Three batches of random inputs and labels. */
function batches(seed: number): { inputs: Tensor; labels: Tensor }[] {
  const generator = new Generator(seed);
  return [0, 1, 2].map(() => ({
    inputs: Tensor.randn([4, 10], { generator }),
    labels: Tensor.from(Int32Array.of(0, 1, 2, 3), [4]),
  }));
}

describe('Basic DDP Training', () => {
  async function train(world: World): Promise<{ losses: number[]; weight: number[] }> {
    const model = new Linear(10, 5, { generator: new Generator(world.rank) });
    const ddp = new DistributedDataParallel(model, world.defaultGroup);
    const optimizer = new AdamW(ddp.parameters(), { lr: 0.1 });
    const losses: number[] = [];

    await ddp.syncParameters();

    ddp.train();
    for (const { inputs, labels } of batches(100 + world.rank)) {
      const output = await ddp.forward(inputs);
      const loss = crossEntropy(output, labels);
      await loss.backward();
      await ddp.syncGradients();
      await optimizer.step();
      optimizer.zeroGrad();
      losses.push(loss.item());
    }
    return { losses, weight: [...(model.weight.data as Float32Array)] };
  }

  test('on a world of one', async () => {
    const world = World.mock();
    try {
      const { losses } = await train(world);
      expect(losses).toHaveLength(3);
      expect(losses.every(Number.isFinite)).toBe(true);
    } finally {
      await world.close();
    }
  });

  test('the same code on two ranks: other batches, the same weights', async () => {
    const [first, second] = await runWorld(2, train);
    expect(second?.losses).not.toEqual(first?.losses);
    expect(second?.weight).toEqual(first?.weight);
  });
});

test('Communication Primitives', async () => {
  const group = ProcessGroup.mock();
  const tensor = Tensor.from([1, 2, 3]);

  await allReduceSum(tensor, group);
  await allReduceMean(tensor, group);
  expect(tensor.toArray()).toEqual([1, 2, 3]);

  await broadcast(tensor, group);
  expect(tensor.toArray()).toEqual([1, 2, 3]);

  const gathered = await allGather(tensor, group);
  expect(gathered.shape).toEqual([1, 3]);
  expect(gathered.toArray()).toEqual([[1, 2, 3]]);

  await barrier(group);

  expect(rank(group)).toBe(0);
  expect(worldSize(group)).toBe(1);
  expect(isMainProcess(group)).toBe(true);
  await group.close();
});

test('Communication Primitives, on three ranks, where they do something', async () => {
  const results = await runWorld(3, async ({ group }) => {
    const tensor = Tensor.from([1, 2, 3].map((value) => value + rank(group)));
    await allReduceSum(tensor, group);
    const sum = tensor.toArray();
    await allReduceMean(tensor, group);
    const mean = tensor.toArray();
    const word = Tensor.from([100 * rank(group)]);
    await broadcast(word, group);
    const gathered = await allGather(Tensor.from([rank(group)]), group);
    await barrier(group);
    return [sum, mean, word.toArray(), gathered.toArray(), worldSize(group), isMainProcess(group)];
  });
  results.forEach((result, self) => {
    expect(result).toEqual([[6, 9, 12], [6, 9, 12], [0], [[0], [1], [2]], 3, self === 0]);
  });
});

test('Gradient Synchronization', async () => {
  const results = await runWorld(2, async ({ group }) => {
    const gradients = [Tensor.from([0.5, 1]), Tensor.from([1.5, 2, 2.5])];
    if (group.rank === 1) gradients.forEach((gradient) => (gradient.data as Float32Array).fill(0));
    await syncGradients(gradients, group);

    const gradient = Tensor.from([1 + group.rank, 2 + group.rank]);
    await syncGradient(gradient, group);
    return [...gradients, gradient].map((tensor) => tensor.toArray());
  });
  const averages = [
    [0.25, 0.5],
    [0.75, 1, 1.25],
    [1.5, 2.5],
  ];
  expect(results).toEqual([averages, averages]);
});

test('Gradient Bucketing', async () => {
  const bucket = new GradientBucket(1000); // elements
  const gradientA = Tensor.from([0.1, 0.2]);
  const gradientB = Tensor.from([0.3, 0.4, 0.5]);

  expect(bucket.add(gradientA)).toBe(true);
  expect(bucket.add(gradientB)).toBe(true);
  expect(bucket.size).toBe(5);

  const group = ProcessGroup.mock();
  await group.backend.allReduce(bucket.data, ReduceOp.Average);

  const synced = bucket.extract();
  expect(synced.map((tensor) => tensor.shape)).toEqual([[2], [3]]);
  expect(synced.map((tensor) => tensor.toArray())).toEqual([gradientA.toArray(), gradientB.toArray()]);
  await group.close();
});

test('Custom Synchronization Strategy: the averages can be read, which the crate has no way for', async () => {
  const results = await runWorld(2, async ({ group }) => {
    const sync = new GradientSynchronizer(GradSyncStrategy.Synchronous, 25_000_000);
    sync.prepare(10);
    sync.addGradient(0, Tensor.from([1 + 2 * group.rank, 2]));
    await sync.syncAll(group);
    const gradients = sync.gradients();
    sync.clear();
    return [gradients.length, gradients[0]?.toArray(), gradients.slice(1).every((gradient) => gradient === undefined)];
  });
  expect(results).toEqual([
    [10, [2, 2], true],
    [10, [2, 2], true],
  ]);
});

test('Multi-Backend Setup', async () => {
  const backends = MockBackend.createWorld(4);
  const groups = backends.map((backend) => new ProcessGroup(backend));
  expect(groups.map((group) => `Rank ${group.rank} of ${group.worldSize}`)).toEqual([
    'Rank 0 of 4',
    'Rank 1 of 4',
    'Rank 2 of 4',
    'Rank 3 of 4',
  ]);
  for (const group of groups) await group.close();
});

describe('Process Subgroups', () => {
  test('on a world of two', async () => {
    await runWorld(2, async (world) => {
      const subgroup = await world.newGroup([0, 1]);
      expect(subgroup.contains(0)).toBe(true);
      expect(subgroup.size).toBe(2);
      await subgroup.close();
    });
  });

  test('on a world of one there is no rank 1, and the message says so; the world lives on', async () => {
    const world = World.mock();
    await expect(world.newGroup([0, 1])).rejects.toThrow(InvalidArgumentError);
    await expect(world.newGroup([0, 1])).rejects.toThrow('there is no rank 1 in a group of 1');
    await world.barrier();
    await world.close();
  });
});
