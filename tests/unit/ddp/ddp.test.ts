/** DDP as its user meets it: what is averaged, when, and what a mistake says. */
import { isLockstepError } from '../../../src/core/errors';
import { memory } from '../../../src/core/memory-account';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { GradSyncStrategy } from '../../../src/ddp/grad-sync-strategy';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { SGD } from '../../../src/optim/sgd';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { batchOf, Branches, flat, gradientsOf, lossOf, Mlp, runPortable } from './models';

/** The message of what `promise` rejects with. */
async function messageOf(promise: PromiseLike<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    return (error as Error).message;
  }
  return 'did not reject';
}

function average(rows: readonly (readonly number[])[]): number[] {
  const first = rows[0] as readonly number[];
  return first.map((_unused, i) =>
    Math.fround(rows.reduce((sum, row) => Math.fround(sum + (row[i] as number)), 0) / rows.length),
  );
}

describe('parameters', () => {
  test('syncParameters makes every rank start from rank 0', async () => {
    const results = await runPortable(3, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(world.rank), world.group);
      await ddp.syncParameters();
      return flat(ddp.parameters());
    });
    for (const parameters of results) expect(parameters).toEqual(flat(new Mlp(0).parameters()));
  });

  test('the first forward does it if it was forgotten', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(world.rank), world.group);
      await ddp.forward(batchOf(1, 2).x);
      return flat(ddp.parameters());
    });
    expect(results[1]).toEqual(flat(new Mlp(0).parameters()));
  });

  test.each<[string, (rank: number) => Module, string]>([
    [
      'another shape',
      (rank) => new Linear(4 + rank, 2),
      `'weight' [2, 5] float32 on rank 1, and 'weight' [2, 4] float32 on rank 0`,
    ],
    [
      'another number of parameters',
      (rank) => new Linear(4, 2, { bias: rank === 0 }),
      `parameter or buffer 1 is missing on rank 1, and 'bias' [2] float32 on rank 0`,
    ],
  ])('%s on one rank is named on all, and the group lives on', async (_name, build, expected) => {
    const messages = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(build(world.rank), world.group);
      const message = await messageOf(ddp.syncParameters());
      await world.barrier();
      return message;
    });
    for (const message of messages) expect(message).toContain(expected);
  });

  test('parameters registered in another order are named', async () => {
    class Pair extends Module {
      constructor(isSwapped: boolean) {
        super();
        const names = isSwapped ? ['b', 'a'] : ['a', 'b'];
        for (const name of names) Object.assign(this, { [name]: new Parameter(Tensor.zeros([2])) });
      }
      override forward(x: Tensor): Promise<Tensor> {
        return Promise.resolve(x);
      }
    }
    const messages = await runPortable(2, async (world) => {
      return await messageOf(new DistributedDataParallel(new Pair(world.rank === 1), world.group).syncParameters());
    });
    expect(messages[0]).toContain(`'b' [2] float32 on rank 1, and 'a' [2] float32 on rank 0`);
  });

  test('options that differ between ranks are named', async () => {
    const messages = await runPortable(2, async (world) => {
      const options = { findUnusedParameters: world.rank === 1 };
      return await messageOf(new DistributedDataParallel(new Mlp(), world.group, options).syncParameters());
    });
    expect(messages[0]).toContain('findUnusedParameters true on rank 1, and findUnusedParameters false on rank 0');
  });

  test('names, state and mode are those of the wrapped module', async () => {
    await runPortable(1, async (world) => {
      const model = new Mlp();
      const ddp = new DistributedDataParallel(model, world.group);
      const fc1: Linear = ddp.module.fc1; // the type is kept
      expect(fc1).toBe(model.fc1);
      expect(ddp.processGroup).toBe(world.group);
      expect(ddp.namedParameters().map(([name]) => name)).toEqual(['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']);
      expect(Object.keys(ddp.stateDict())).toEqual(Object.keys(model.stateDict()));
      ddp.eval();
      expect([ddp.isTraining, model.isTraining, model.fc1.isTraining]).toEqual([false, false, false]);
      ddp.train();
      expect([ddp.isTraining, model.fc1.isTraining]).toEqual([true, true]);
    });
  });
});

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
    return await messageOf(
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

describe('parameters that backward does not reach', () => {
  test('one is an error of that very step, which names it, and the others learn whose it was', async () => {
    const failure = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Branches(), world.group);
      const y = await ddp.forward(Tensor.from([1, 1]), { left: true, right: world.rank === 0 });
      await y.sum().backward();
      await ddp.syncGradients();
    }).then(
      () => undefined,
      (error: unknown) => error as { message: string; errors: Error[] },
    );
    expect(failure?.message).toContain(`parameter 'right' got no gradient in this backward on rank 1`);
    expect(failure?.message).toContain('findUnusedParameters: true');
    expect(isLockstepError(failure?.errors[0])).toBe(true);
  });

  test('findUnusedParameters averages zeros for one, and leaves one that nobody used without a gradient', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Branches(), world.group, { findUnusedParameters: true });
      const first = await ddp.forward(Tensor.from([2, 4]), { left: true, right: false });
      await first.sum().backward();
      await ddp.syncGradients();
      const rightAfterFirst = ddp.module.right.grad;
      ddp.zeroGrad();
      const second = await ddp.forward(Tensor.from([2, 4]), { left: true, right: world.rank === 1 });
      await second.sum().backward();
      await ddp.syncGradients();
      return { rightAfterFirst, left: ddp.module.left.grad?.toArray(), right: ddp.module.right.grad?.toArray() };
    });
    for (const result of results) {
      expect(result).toEqual({ rightAfterFirst: undefined, left: [2, 4], right: [1, 2] });
    }
  });

  test('a parameter used only inside noSync is synchronised with the rest', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Branches(), world.group);
      await ddp.noSync(async () => {
        const y = await ddp.forward(Tensor.from([world.rank, 2]), { left: true, right: true });
        await y.sum().backward();
      });
      await (await ddp.forward(Tensor.from([1, 1]), { left: true, right: false })).sum().backward();
      await ddp.syncGradients();
      return ddp.module.right.grad?.toArray();
    });
    expect(results).toEqual([
      [0.5, 2],
      [0.5, 2],
    ]);
  });

  test('a Parameter that the module does not list is named', async () => {
    class Hidden extends Module {
      readonly shown = new Parameter(Tensor.ones([2]));
      readonly #hidden = new Parameter(Tensor.ones([2]), { name: 'hidden' });
      override forward(x: Tensor): Promise<Tensor> {
        return Promise.resolve(x.mul(this.shown).mul(this.#hidden));
      }
    }
    const failure = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Hidden(), world.group);
      await (await ddp.forward(Tensor.ones([2]))).sum().backward();
    }).then(
      () => undefined,
      (error: unknown) => error as Error,
    );
    expect(failure?.message).toContain(
      `reached the Parameter 'hidden' of shape [2], which the wrapped module does not list`,
    );
  });
});

describe('kinds of parameters', () => {
  test('tied parameters are averaged once, with the gradients of both uses', async () => {
    class Tied extends Module {
      readonly a = new Linear(3, 3, { bias: false });
      readonly b = new Linear(3, 3, { bias: false });
      constructor() {
        super();
        this.b.weight = this.a.weight;
      }
      override async forward(x: Tensor): Promise<Tensor> {
        return await this.b.forward(await this.a.forward(x));
      }
    }
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Tied(), world.group);
      expect(ddp.parameters()).toHaveLength(1);
      await (await ddp.forward(Tensor.from([[1, world.rank, 0]]))).sum().backward();
      await ddp.syncGradients();
      return gradientsOf(ddp);
    });
    expect(results[0]).toEqual(results[1]);
  });

  test('frozen, zero-size and mixed-dtype parameters train together', async () => {
    class Mixed extends Module<[number], Tensor> {
      readonly frozen = new Parameter(Tensor.from([5]), { requiresGrad: false });
      readonly empty = new Parameter(Tensor.zeros([0, 3]));
      readonly single = new Parameter(Tensor.from([1, 2]));
      readonly double = new Parameter(Tensor.from([3], [1], { dtype: 'float64' }));
      readonly half = new Parameter(Tensor.from([4], [1], { dtype: 'bfloat16' }));
      override forward(factor: number): Promise<Tensor> {
        const parts = [
          this.single.mul(factor).sum(),
          this.empty.sum(),
          this.double.mul(factor).sum().to('float32'),
          this.half.mul(factor).sum().to('float32'),
          this.frozen.sum(),
        ];
        return Promise.resolve(parts.reduce((a, b) => a.add(b)));
      }
    }
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mixed(), world.group);
      await (await ddp.forward(world.rank + 1)).backward();
      await ddp.syncGradients();
      const { frozen, empty, single, double, half } = ddp.module;
      return [frozen.grad, empty.grad?.shape, single.grad?.toArray(), double.grad?.item(), half.grad?.item()];
    });
    for (const result of results) expect(result).toEqual([undefined, [0, 3], [1.5, 1.5], 1.5, 1.5]);
  });

  test('a module without trainable parameters, or a group without this rank, is refused', async () => {
    await runPortable(2, async (world) => {
      class Empty extends Module {
        override forward(x: Tensor): Promise<Tensor> {
          return Promise.resolve(x);
        }
      }
      expect(() => new DistributedDataParallel(new Empty(), world.group)).toThrow(
        'the module has no trainable parameter',
      );
      const group = await world.newGroup([0]);
      if (world.rank === 1)
        expect(() => new DistributedDataParallel(new Mlp(), group)).toThrow('this rank is not a member');
      await group.close();
    });
  });

  test('options that do not parse name the path and the unknown key', () => {
    const wrap = (options: object) => () => new DistributedDataParallel(new Mlp(), ProcessGroup.mock(), options);
    expect(wrap({ bucketCapMb: 0 })).toThrow('DistributedDataParallel: options.bucketCapMb: ');
    expect(wrap({ bucketCapMB: 25 })).toThrow("options: unknown key 'bucketCapMB'. Known options: bucketCapMb");
    expect(wrap({ gradSync: 'Sometimes' })).toThrow('options.gradSync');
  });
});

describe('buffers', () => {
  class Counting extends Module {
    readonly weight = new Parameter(Tensor.ones([1]));
    declare count: Tensor;
    constructor(start: number) {
      super();
      this.registerBuffer('count', Tensor.from([start]));
    }
    override forward(x: Tensor): Promise<Tensor> {
      return Promise.resolve(x.mul(this.weight).add(this.count));
    }
  }

  test.each([true, false])('broadcastBuffers %s', async (broadcastBuffers) => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Counting(world.rank), world.group, { broadcastBuffers });
      await ddp.syncParameters();
      (ddp.module.count.data as Float32Array)[0] = 10 + world.rank;
      await (await ddp.forward(Tensor.from([1]))).sum().backward();
      await ddp.syncGradients();
      return ddp.module.count.item();
    });
    expect(results).toEqual(broadcastBuffers ? [10, 10] : [10, 11]);
  });

  test('one rank may evaluate alone: no communication in eval mode', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Counting(0), world.group);
      await ddp.syncParameters();
      ddp.eval();
      if (world.rank === 0) await ddp.forward(Tensor.from([1]));
    });
  });
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
