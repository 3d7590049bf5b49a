/**
 * The test cases of the Rust crate axonml-distributed 0.2.4 (comm, process_group, ddp, lib), under their names, with the
 * values that are right where the crate's own test asserts a fault. Those of its backend are in tests/conformance, the
 * smoke tests that came later in peer-smoke.test.ts.
 */
import {
  allGather,
  allReduceMax,
  allReduceMean,
  allReduceMin,
  allReduceSum,
  barrier,
  broadcast,
  broadcastFrom,
  DeadlockError,
  DistributedDataParallel,
  gatherTensor,
  GradientBucket,
  GradientSynchronizer,
  GradSyncStrategy,
  isMainProcess,
  Linear,
  MockBackend,
  ProcessGroup,
  rank,
  reduceScatterSum,
  ReduceOp,
  ringAllReduce,
  scatterTensor,
  syncGradient,
  syncGradients,
  Tensor,
  World,
  worldSize,
} from '../../src/index';
import { runWorld } from '../../src/testing/index';

/** A group of one for a test, closed afterwards. */
async function withGroup<R>(fn: (group: ProcessGroup) => Promise<R>): Promise<R> {
  const group = ProcessGroup.mock();
  try {
    return await fn(group);
  } finally {
    await group.close();
  }
}

async function withWorld<R>(fn: (world: World) => Promise<R>): Promise<R> {
  const world = World.mock();
  try {
    return await fn(world);
  } finally {
    await world.close();
  }
}

describe('comm, on a world of one', () => {
  test.each<[string, (tensor: Tensor, group: ProcessGroup) => PromiseLike<unknown>]>([
    ['test_all_reduce_sum', allReduceSum],
    ['test_all_reduce_mean', allReduceMean],
    ['test_all_reduce_min', allReduceMin],
    ['test_all_reduce_max', allReduceMax],
    ['test_sync_gradient', syncGradient],
    ['test_ring_all_reduce', ringAllReduce],
    ['test_broadcast', broadcast],
    ['test_broadcast_from', (tensor, group) => broadcastFrom(tensor, 0, group)],
  ])('%s leaves the tensor as it is', (_name, collective) =>
    withGroup(async (group) => {
      const tensor = Tensor.from([1, 2, 3]);
      await collective(tensor, group);
      expect(tensor.toArray()).toEqual([1, 2, 3]);
    }),
  );

  test('test_all_gather adds a dimension of one', () =>
    withGroup(async (group) => {
      const gathered = await allGather(Tensor.from([1, 2]), group);
      expect(gathered.shape).toEqual([1, 2]);
      expect(gathered.toArray()).toEqual([[1, 2]]);
    }));

  test('test_reduce_scatter_sum keeps the shape', () =>
    withGroup(async (group) => {
      const scattered = await reduceScatterSum(Tensor.from([1, 2]), group);
      expect(scattered.shape).toEqual([2]);
      expect(scattered.toArray()).toEqual([1, 2]);
    }));

  test('test_barrier, test_is_main_process, test_world_size, test_rank', () =>
    withGroup(async (group) => {
      await barrier(group);
      expect([isMainProcess(group), worldSize(group), rank(group)]).toEqual([true, 1, 0]);
    }));

  test('test_scatter_tensor_1d', () =>
    withGroup(async (group) => {
      const slice = await scatterTensor(Tensor.from([1, 2, 3, 4]), 0, group);
      expect(slice.toArray()).toEqual([1, 2, 3, 4]);
    }));

  test('test_gather_tensor', () =>
    withGroup(async (group) => {
      const whole = await gatherTensor(Tensor.from([1, 2]), 0, group);
      expect(whole.toArray()).toEqual([1, 2]);
    }));

  test('test_sync_gradients', () =>
    withGroup(async (group) => {
      const gradients = [Tensor.from([1, 2]), Tensor.from([3, 4])];
      await syncGradients(gradients, group);
      expect(gradients.map((gradient) => gradient.toArray())).toEqual([
        [1, 2],
        [3, 4],
      ]);
    }));
});

describe('process_group', () => {
  test('test_process_group_mock, test_process_group_contains', () =>
    withGroup(async (group) => {
      expect([group.rank, group.worldSize, group.size]).toEqual([0, 1, 1]);
      expect([group.contains(0), group.contains(1)]).toEqual([true, false]);
    }));

  test('test_world_mock, test_world_barrier, test_world_new_group', () =>
    withWorld(async (world) => {
      expect([world.rank, world.worldSize, world.isMain]).toEqual([0, 1, true]);
      await world.barrier();
      const group = await world.newGroup([0]);
      expect(group.size).toBe(1);
      await group.close();
    }));

  test('test_process_group_all_reduce_tensor: called by one of two ranks it fails, naming the other, and returns nothing', async () => {
    const tensor = Tensor.from([1, 2, 3]);
    const failure = await runWorld(2, async ({ group }) => {
      if (group.rank === 0) await group.allReduce(tensor, ReduceOp.Sum);
    }).catch((error: unknown) => error as Error);
    expect((failure as Error).cause).toBeInstanceOf(DeadlockError);
    expect((failure as Error).message).toMatch(/allReduce[^]*rank 1/);
  });

  test('test_process_group_broadcast_tensor, test_process_group_all_gather_tensor, test_process_group_barrier', () =>
    withGroup(async (group) => {
      const tensor = Tensor.from([1, 2]);
      await group.broadcast(tensor, 0);
      expect(tensor.toArray()).toEqual([1, 2]);
      expect((await group.allGather(tensor)).shape).toEqual([1, 2]);
      await group.barrier();
    }));
});

describe('ddp', () => {
  const ddpOf = (group: ProcessGroup, inputs = 4, outputs = 2): DistributedDataParallel<Linear> =>
    new DistributedDataParallel(new Linear(inputs, outputs), group);

  test('test_ddp_creation, test_ddp_module_access, test_ddp_parameters', () =>
    withGroup(async (group) => {
      const ddp = ddpOf(group, 10, 5);
      expect([ddp.processGroup.rank, ddp.processGroup.worldSize]).toEqual([0, 1]);
      expect(ddp.module).toBeInstanceOf(Linear);
      expect(ddp.parameters().map((parameter) => parameter.shape)).toEqual([[5, 10], [5]]);
    }));

  test('test_ddp_forward', () =>
    withGroup(async (group) => {
      const output = await ddpOf(group).forward(Tensor.ones([1, 4]));
      expect(output.shape).toEqual([1, 2]);
    }));

  test('test_ddp_train_eval', () =>
    withGroup(async (group) => {
      const ddp = ddpOf(group);
      expect([ddp.isTraining, ddp.module.isTraining]).toEqual([true, true]);
      ddp.eval();
      expect([ddp.isTraining, ddp.module.isTraining]).toEqual([false, false]);
      ddp.train();
      expect([ddp.isTraining, ddp.module.isTraining]).toEqual([true, true]);
    }));

  test('test_gradient_bucket', () => {
    const bucket = new GradientBucket(100);
    expect([bucket.isEmpty, bucket.isFull]).toEqual([true, false]);
    expect([bucket.add(Tensor.from([1, 2, 3])), bucket.size]).toEqual([true, 3]);
    expect([bucket.add(Tensor.from([4, 5])), bucket.size]).toEqual([true, 5]);
    expect([...(bucket.data as Float32Array)]).toEqual([1, 2, 3, 4, 5]);
  });

  test('test_gradient_bucket_extract', () => {
    const bucket = new GradientBucket(100);
    bucket.add(Tensor.from([1, 2]));
    bucket.add(Tensor.from([3, 4, 5]));
    expect(bucket.extract().map((tensor) => tensor.toArray())).toEqual([
      [1, 2],
      [3, 4, 5],
    ]);
  });

  test('test_gradient_bucket_full: what does not fit changes nothing, and what fits exactly still goes in', () => {
    const bucket = new GradientBucket(5);
    expect(bucket.add(Tensor.from([1, 2, 3]))).toBe(true);
    expect(bucket.add(Tensor.from([4, 5, 6]))).toBe(false);
    expect([bucket.size, bucket.isFull]).toEqual([3, false]);
    expect([bucket.add(Tensor.from([4, 5])), bucket.isFull]).toEqual([true, true]);
  });

  test('test_gradient_bucket_clear', () => {
    const bucket = new GradientBucket(5);
    bucket.add(Tensor.from([1]));
    bucket.clear();
    expect([bucket.isEmpty, bucket.size, bucket.capacity, bucket.extract()]).toEqual([true, 0, 5, []]);
  });

  test('test_gradient_synchronizer, test_gradient_synchronizer_default, test_grad_sync_strategy', () => {
    const sync = new GradientSynchronizer(GradSyncStrategy.Overlapped, 100);
    sync.prepare(10);
    expect(sync.strategy).toBe(GradSyncStrategy.Overlapped);
    expect(new GradientSynchronizer().strategy).toBe(GradSyncStrategy.Synchronous);
    expect(new Set(Object.values(GradSyncStrategy)).size).toBe(3);
  });

  test('test_gradient_synchronizer_no_sync: gradients stay as they are, on every rank', async () => {
    const gradients = await runWorld(2, async ({ group }) => {
      const sync = new GradientSynchronizer(GradSyncStrategy.NoSync, 100);
      sync.prepare(1);
      sync.addGradient(0, Tensor.from([group.rank]));
      await sync.syncAll(group);
      return sync.gradients()[0]?.toArray();
    });
    expect(gradients).toEqual([[0], [1]]);
  });
});

describe('lib', () => {
  test('test_full_distributed_workflow', () =>
    withWorld(async (world) => {
      const ddp = new DistributedDataParallel(new Linear(10, 5), world.defaultGroup);
      const output = await ddp.forward(Tensor.ones([1, 10]));
      expect(output.shape).toEqual([1, 5]);
      ddp.train();
      expect(ddp.isTraining).toBe(true);
      await ddp.syncParameters();
      await ddp.syncGradients();
    }));

  test('test_multiple_backends, test_process_group_creation', async () => {
    const backends = MockBackend.createWorld(4);
    expect(backends.map((backend) => [backend.rank, backend.worldSize])).toEqual([
      [0, 4],
      [1, 4],
      [2, 4],
      [3, 4],
    ]);
    for (const backend of backends) await backend.close();
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const group = new ProcessGroup(first);
    expect([group.size, group.ranks]).toEqual([2, [0, 1]]);
    await group.close();
    await second.close();
  });

  test('test_gradient_bucket_workflow', () => {
    const bucket = new GradientBucket(1000);
    const gradients = [Tensor.from([0.1, 0.2]), Tensor.from([0.3, 0.4, 0.5])];
    gradients.forEach((gradient) => bucket.add(gradient));
    expect(bucket.size).toBe(5);
    expect(bucket.extract().map((tensor) => tensor.toArray())).toEqual(gradients.map((tensor) => tensor.toArray()));
    bucket.clear();
    expect(bucket.isEmpty).toBe(true);
  });

  test('test_gradient_synchronizer_workflow', () =>
    withGroup(async (group) => {
      const sync = new GradientSynchronizer(GradSyncStrategy.Synchronous, 1000);
      sync.prepare(10);
      sync.addGradient(0, Tensor.from([1, 2]));
      await sync.syncAll(group);
      expect(sync.gradients()[0]?.toArray()).toEqual([1, 2]);
      sync.clear();
      expect(sync.gradients().every((gradient) => gradient === undefined)).toBe(true);
    }));

  test('test_world_default_group, test_world_new_subgroup', () =>
    withWorld(async (world) => {
      expect([world.defaultGroup.rank, world.defaultGroup.worldSize]).toEqual([0, 1]);
      const group = await world.newGroup([0]);
      expect([group.size, group.contains(0)]).toEqual([1, true]);
      await group.close();
    }));

  test('test_ddp_builder_pattern: the flags are options', () =>
    withGroup(async (group) => {
      const options = { broadcastBuffers: false, gradientAsBucketView: false };
      const ddp = new DistributedDataParallel(new Linear(10, 5), group, options);
      expect(ddp.isTraining).toBe(true);
    }));
});
