import { GradSyncStrategy } from '../../../src/ddp/grad-sync-strategy';
import { GradientSynchronizer } from '../../../src/ddp/gradient-synchronizer';
import { Tensor } from '../../../src/tensor/tensor';
import { runPortable } from './models';

const { Synchronous, Overlapped, NoSync } = GradSyncStrategy;

function gradient(rank: number, index: number, size: number): Tensor {
  return Tensor.from(Array.from({ length: size }, (_unused, i) => rank + 10 * index + i / 8));
}

test.each([Synchronous, Overlapped])(
  '%s: gradients become their averages, whatever the bucket size',
  async (strategy) => {
    for (const bucketSize of [1, 3, 5, 1000]) {
      const results = await runPortable(3, async (world) => {
        const synchronizer = new GradientSynchronizer(strategy, bucketSize);
        synchronizer.prepare(4);
        for (const index of [0, 1, 3]) synchronizer.addGradient(index, gradient(world.rank, index, index + 2));
        await synchronizer.syncAll(world.group);
        return synchronizer.gradients().map((tensor) => tensor?.toArray());
      });
      for (const gradients of results) {
        expect(gradients).toEqual(
          [gradient(1, 0, 2), gradient(1, 1, 3), undefined, gradient(1, 3, 5)].map((t) => t?.toArray()),
        );
      }
    }
  },
);

test('NoSync leaves every rank its own gradients', async () => {
  const results = await runPortable(2, async (world) => {
    const synchronizer = new GradientSynchronizer(NoSync, 10);
    synchronizer.prepare(1);
    synchronizer.addGradient(0, gradient(world.rank, 0, 1));
    await synchronizer.syncAll(world.group);
    return synchronizer.gradients()[0]?.item();
  });
  expect(results).toEqual([0, 1]);
});

test('dtypes are synchronised in buckets of their own', async () => {
  const results = await runPortable(2, async (world) => {
    const synchronizer = new GradientSynchronizer(Synchronous, 100);
    synchronizer.prepare(3);
    synchronizer.addGradient(0, Tensor.from([world.rank], [1]));
    synchronizer.addGradient(1, Tensor.from([world.rank + 4], [1], { dtype: 'float64' }));
    synchronizer.addGradient(2, Tensor.from([world.rank + 8], [1]));
    await synchronizer.syncAll(world.group);
    return synchronizer.gradients().map((tensor) => [tensor?.dtype, tensor?.item()]);
  });
  expect(results[1]).toEqual([
    ['float32', 0.5],
    ['float64', 4.5],
    ['float32', 8.5],
  ]);
});

test('ranks that hold different gradients all learn which index differs, and can go on', async () => {
  const results = await runPortable(2, async (world) => {
    const synchronizer = new GradientSynchronizer(Synchronous, 100);
    synchronizer.prepare(2);
    synchronizer.addGradient(world.rank, Tensor.from([1, 2])); // same size, other parameter
    const error = await synchronizer.syncAll(world.group).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    await world.barrier();
    return (error as Error).message;
  });
  for (const message of results) {
    expect(message).toContain('index 0 is none on rank 1, and float32[2] on rank 0');
  }
});

test('indices that were not prepared, or are taken, are refused: no gradient is lost silently', () => {
  const synchronizer = new GradientSynchronizer();
  expect(synchronizer.strategy).toBe(Synchronous);
  expect(() => synchronizer.addGradient(0, Tensor.from([1]))).toThrow('Call prepare(numParameters)');
  synchronizer.prepare(2);
  expect(() => synchronizer.addGradient(2, Tensor.from([1]))).toThrow('expected an index from 0 to 1, got 2');
  synchronizer.addGradient(1, Tensor.from([1]));
  expect(() => synchronizer.addGradient(1, Tensor.from([1]))).toThrow('index 1 has a gradient already');
  synchronizer.clear();
  synchronizer.addGradient(1, Tensor.from([1]));
  expect(synchronizer.gradients()[0]).toBeUndefined();
});

test('wrong strategies and sizes are named', () => {
  expect(() => new GradientSynchronizer('Sometimes' as never, 10)).toThrow(
    'expected a strategy of Synchronous, Overlapped, NoSync',
  );
  expect(() => new GradientSynchronizer(Synchronous, 0)).toThrow(
    'expected a bucket size of 1 or more whole elements, got 0',
  );
});
