/** What DDP averages, in which pieces, what it holds and what it reports. */
import { memory } from '../../../src/core/memory-account';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { GradSyncStrategy } from '../../../src/ddp/grad-sync-strategy';
import { type Module } from '../../../src/nn/module';
import { SGD } from '../../../src/optim/sgd';
import { tidy } from '../../../src/tensor/tidy';
import { batchOf, flat, gradientsOf, lossOf, Mlp, runPortable } from './models';

function average(rows: readonly (readonly number[])[]): number[] {
  const first = rows[0] as readonly number[];
  return first.map((_unused, i) =>
    Math.fround(rows.reduce((sum, row) => Math.fround(sum + (row[i] as number)), 0) / rows.length),
  );
}

describe.each([GradSyncStrategy.Overlapped, GradSyncStrategy.Synchronous])('%s', (gradSync) => {
  test.each([false, true])(
    'gradients are the average in rank order, bit for bit; bucket view %s',
    async (gradientAsBucketView) => {
      const local = await Promise.all(
        [0, 1, 2].map(async (rank) => {
          const model = new Mlp();
          await (await lossOf(model, batchOf(rank, 4))).backward();
          return gradientsOf(model);
        }),
      );
      const results = await runPortable(3, async (world) => {
        const ddp = new DistributedDataParallel(new Mlp(), world.group, {
          gradSync,
          gradientAsBucketView,
          bucketCapMb: 0.0001,
        });
        await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
        await ddp.syncGradients();
        return gradientsOf(ddp);
      });
      for (const gradients of results) expect(gradients).toEqual(average(local));
    },
  );

  test('a second syncGradients changes nothing', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradSync });
      await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
      await ddp.syncGradients();
      const once = gradientsOf(ddp);
      await ddp.syncGradients();
      expect(gradientsOf(ddp)).toEqual(once);
    });
  });

  test('syncGradients without a backward does nothing', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradSync });
      await ddp.syncGradients();
      expect(gradientsOf(ddp)).toEqual([]);
    });
  });

  test.each([false, true])(
    'accumulation in noSync averages once what was added up; bucket view %s',
    async (gradientAsBucketView) => {
      const accumulate = async (model: Module, rank: number): Promise<void> => {
        for (const part of [0, 1, 2]) await (await lossOf(model, batchOf(10 * rank + part, 4))).backward();
      };
      const local = await Promise.all(
        [0, 1].map(async (rank) => {
          const model = new Mlp();
          await accumulate(model, rank);
          return gradientsOf(model);
        }),
      );
      const results = await runPortable(2, async (world) => {
        const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradSync, gradientAsBucketView });
        await ddp.noSync(async () => {
          for (const part of [0, 1]) await (await lossOf(ddp, batchOf(10 * world.rank + part, 4))).backward();
        });
        await (await lossOf(ddp, batchOf(10 * world.rank + 2, 4))).backward();
        await ddp.syncGradients();
        return gradientsOf(ddp);
      });
      for (const gradients of results) expect(gradients).toEqual(average(local));
    },
  );
});

test.each([false, true])(
  'a step holds parameters, gradients, and one copy only for buckets that are no views; bucket view %s',
  async (isView) => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group, {
        gradientAsBucketView: isView,
        bucketCapMb: 0.0001,
      });
      const modelBytes = 4 * ddp.parameters().reduce((total, { size }) => total + size, 0);
      await ddp.syncParameters();
      memory.resetPeak();
      for (let step = 0; step < 3; step++) {
        await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
        await ddp.syncGradients();
        ddp.zeroGrad();
      }
      const { parameters, gradients, communication } = memory.stats().peak;
      expect({ parameters, gradients, communication }).toEqual({
        parameters: modelBytes,
        gradients: modelBytes,
        communication: isView ? 0 : modelBytes,
      });
    });
  },
);

test('events tell of each bucket, in launch order, and of the end of the step', async () => {
  const results = await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Mlp(), world.group, { bucketCapMb: 0.0001 });
    const seen: string[] = [];
    ddp.on('bucketLaunched', ({ bucket, bytes }) => seen.push(`launched ${bucket} ${bytes}`));
    ddp.on('bucketDone', ({ bucket }) => seen.push(`done ${bucket}`));
    ddp.on('stepEnd', ({ buckets, bytes }) => seen.push(`end ${buckets} ${bytes}`));
    await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
    await ddp.syncGradients();
    return seen;
  });
  // bytes: fc2.bias 3, fc2.weight 24, fc1.bias 8, fc1.weight 48 floats; capacity 104 bytes
  for (const seen of results) {
    expect(seen.filter((line) => line.startsWith('launched'))).toEqual(['launched 0 108', 'launched 1 224']);
    expect(seen.at(-1)).toBe('end 2 332');
  }
});

test('a throwing listener changes nothing', async () => {
  const results = await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Mlp(), world.group, {
      logger: { debug() {}, info() {}, warn() {}, error() {} },
    });
    ddp.on('bucketLaunched', () => {
      throw new Error('listener');
    });
    await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
    await ddp.syncGradients();
    return gradientsOf(ddp);
  });
  expect(results[0]).toEqual(results[1]);
});

test.each([false, true])('steps inside tidy give the gradients of steps outside; bucket view %s', async (isView) => {
  const train = async (inTidy: boolean): Promise<number[][]> =>
    runPortable(2, async (world) => {
      const options = { gradientAsBucketView: isView, bucketCapMb: 0.0001 };
      const ddp = new DistributedDataParallel(new Mlp(), world.group, options);
      const optimizer = new SGD(ddp.parameters(), { lr: 0.1 });
      const step = async (): Promise<void> => {
        await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
        await ddp.syncGradients();
        await optimizer.step();
        optimizer.zeroGrad();
      };
      for (let i = 0; i < 4; i++) await (inTidy ? tidy(step) : step());
      return flat(ddp.parameters());
    });
  expect(await train(true)).toEqual(await train(false));
});
