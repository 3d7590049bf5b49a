/** A gradient that is one rank's own is never used for all: not by step, not by clipping, not by accident. */
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { GradSyncStrategy } from '../../../src/ddp/grad-sync-strategy';
import { Linear } from '../../../src/nn/linear';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';
import { batchOf, flat, gradientsOf, lossOf, Mlp, runPortable } from './models';

/** The message of what `promise` rejects with. */
async function messageOf(promise: PromiseLike<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    return (error as Error).message;
  }
  return 'did not reject';
}

describe('a gradient that is not synchronised is never used silently', () => {
  test('step and clipping wait for buckets in flight', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group);
      const optimizer = new SGD(ddp.parameters(), { lr: 0.1 });
      await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
      await optimizer.clipGradNorm(1);
      await optimizer.step(); // without syncGradients: the buckets are on their way
      return flat(ddp.parameters());
    });
    expect(results[0]).toEqual(results[1]);
    expect(results[0]).not.toEqual(flat(new Mlp().parameters()));
  });

  test('step before syncGradients is refused where nothing is on its way, and names the parameters', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradSync: GradSyncStrategy.Synchronous });
      const optimizer = new SGD(ddp.parameters(), { lr: 0.1 });
      const before = flat(ddp.parameters());
      await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
      const message = await messageOf(optimizer.step());
      expect(message).toContain(`parameters 'fc1.weight', 'fc1.bias', 'fc2.weight' and 1 more on rank ${world.rank}`);
      expect(message).toContain('Call await ddp.syncGradients() after backward()');
      expect(await messageOf(optimizer.clipGradNorm(1))).toContain('not synchronised');
      await ddp.syncGradients();
      if (world.rank === 0) expect(flat(ddp.parameters())).toEqual(before);
      await optimizer.step();
    });
  });

  test('a step after noSync alone is refused outside it and allowed inside', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group);
      const optimizer = new SGD(ddp.parameters(), { lr: 0.1 });
      await ddp.noSync(async () => (await lossOf(ddp, batchOf(world.rank, 4))).backward());
      expect(await messageOf(optimizer.step())).toContain('not synchronised');
      await ddp.noSync(() => optimizer.step());
      optimizer.zeroGrad();
      await optimizer.step(); // zeroed gradients are nobody's
    });
  });

  test('NoSync keeps every rank its own gradients, and steps are allowed', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradSync: GradSyncStrategy.NoSync });
      await (await lossOf(ddp, batchOf(world.rank, 4))).backward();
      await ddp.syncGradients();
      await new SGD(ddp.parameters(), { lr: 0.1 }).step();
      return gradientsOf(ddp);
    });
    expect(results[0]).not.toEqual(results[1]);
  });

  test('a forgotten await of backward is an error of step, and of the next backward', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group);
      const optimizer = new SGD(ddp.parameters(), { lr: 0.1 });
      const backward = (await lossOf(ddp, batchOf(world.rank, 4))).backward();
      expect(await messageOf(optimizer.step())).toContain('previous backward() was not awaited');
      await backward;
      await ddp.syncGradients();
      await optimizer.step();
    });
  });

  /** Rank 0 does `meddle` while its buckets wait for rank 1's; returns what the world fails with. */
  async function meddleInFlight(
    gradientAsBucketView: boolean,
    meddle: (ddp: DistributedDataParallel<Mlp>) => void,
  ): Promise<string> {
    let releaseRank1 = (): void => undefined;
    const rank0IsDone = new Promise<void>((resolve) => (releaseRank1 = resolve));
    return messageOf(
      runPortable(2, async (world) => {
        const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradientAsBucketView });
        const loss = await lossOf(ddp, batchOf(world.rank, 4));
        if (world.rank === 1) await rank0IsDone;
        await loss.backward();
        if (world.rank === 0) {
          meddle(ddp);
          releaseRank1();
        }
        await ddp.syncGradients();
      }),
    );
  }

  test.each([false, true])(
    'a gradient changed while its bucket is in flight is an error; bucket view %s',
    async (isView) => {
      const message = await meddleInFlight(isView, (ddp) => {
        (ddp.module.fc1.weight.grad?.data as Float32Array)[3] = 9;
      });
      expect(message).toMatch(
        isView ? /allReduce.*changed/ : /the gradient of parameter 'fc1.weight' was changed while/,
      );
    },
  );

  test.each([false, true])('zeroGrad while a bucket is in flight is an error; bucket view %s', async (isView) => {
    const message = await meddleInFlight(isView, (ddp) => ddp.zeroGrad());
    expect(message).toMatch(/the gradient of parameter 'fc[12]\.(weight|bias)' was set or taken away/);
  });

  test('a NaN gradient reaches every rank', async () => {
    const results = await runPortable(3, async (world) => {
      const ddp = new DistributedDataParallel(new Linear(2, 1), world.group);
      await (await ddp.forward(Tensor.from([[world.rank === 1 ? NaN : 1, 1]]))).sum().backward();
      await ddp.syncGradients();
      return gradientsOf(ddp);
    });
    for (const gradients of results) expect(gradients.slice(0, 2)).toEqual([NaN, 1]);
  });
});

test('noSync of one module leaves the others averaging', async () => {
  const results = await runPortable(2, async (world) => {
    const generator = new DistributedDataParallel(new Linear(1, 1, { bias: false }), world.group);
    const judge = new DistributedDataParallel(new Linear(1, 1, { bias: false }), world.group);
    const optimizer = new SGD(generator.parameters(), { lr: 0.1 });
    await judge.noSync(async () => {
      const made = await generator.forward(Tensor.from([[world.rank + 1]]));
      await (await judge.forward(made)).sum().backward();
      await optimizer.step();
    });
    const judged = await messageOf(new SGD(judge.parameters(), { lr: 0.1 }).step());
    return { weight: generator.module.weight.item(), judged };
  });
  expect(results[0]?.weight).toBe(results[1]?.weight);
  for (const { judged } of results) expect(judged).toContain('not synchronised with the other ranks');
});

test.each([GradSyncStrategy.Overlapped, GradSyncStrategy.Synchronous])(
  'syncGradients while backward runs is refused, and the group lives on; %s',
  async (gradSync) => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(), world.group, { gradSync });
      const backward = (await lossOf(ddp, batchOf(world.rank, 4))).backward();
      expect(await messageOf(ddp.syncGradients())).toContain('previous backward() was not awaited');
      await backward;
      await ddp.syncGradients();
    });
  },
);

test('a gradient that is read while its bucket is in flight is NaN, never one rank alone', async () => {
  let releaseRank1 = (): void => undefined;
  const rank0HasRead = new Promise<void>((resolve) => (releaseRank1 = resolve));
  await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Mlp(), world.group);
    const loss = await lossOf(ddp, batchOf(world.rank, 4));
    if (world.rank === 1) await rank0HasRead;
    await loss.backward();
    if (world.rank === 0) {
      expect(gradientsOf(ddp).every((value) => Number.isNaN(value))).toBe(true);
      releaseRank1();
    }
    await ddp.syncGradients();
    expect(gradientsOf(ddp).some((value) => Number.isNaN(value))).toBe(false);
  });
});

test('backward through the module itself is refused until the ranks hold the same parameters', async () => {
  await runPortable(2, async (world) => {
    const model = new Mlp(world.rank);
    const ddp = new DistributedDataParallel(model, world.group);
    const loss = await lossOf(model, batchOf(0, 4));
    expect(await messageOf(loss.backward())).toContain('the wrapped module was called instead of the wrapper');
    await ddp.syncParameters();
    await (await lossOf(model, batchOf(0, 4))).backward();
    await ddp.syncGradients();
  });
});
