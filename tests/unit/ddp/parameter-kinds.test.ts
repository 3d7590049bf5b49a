/** Parameters that are unused, unlisted, tied, frozen, empty or of another dtype. */
import { isLockstepError } from '../../../src/core/errors';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { tidy } from '../../../src/tensor/tidy';
import { Branches, gradientsOf, Mlp, runPortable } from './models';

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

  test('one that this rank alone has not used gets its average inside tidy too', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Branches(), world.group, { findUnusedParameters: true });
      await tidy(async () => {
        const use = { left: true, right: world.rank === 1 };
        await (await ddp.forward(Tensor.from([2, 4]), use)).sum().backward();
        await ddp.syncGradients();
      });
      return ddp.module.right.grad?.toArray();
    });
    expect(results).toEqual([
      [1, 2],
      [1, 2],
    ]);
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
        return this.b.forward(await this.a.forward(x));
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

  test.each([false, true])(
    '16-bit gradients of micro-batches add up in float32 and are rounded once (as views: %s)',
    async (gradientAsBucketView) => {
      class Half extends Module<[number], Tensor> {
        readonly weight = new Parameter(Tensor.from([1], [1], { dtype: 'bfloat16' }));
        override forward(factor: number): Promise<Tensor> {
          return Promise.resolve(this.weight.mul(factor).sum());
        }
      }
      await runPortable(2, async (world) => {
        const ddp = new DistributedDataParallel(new Half(), world.group, { gradientAsBucketView });
        for (const factor of [256, 1]) await ddp.noSync(async () => (await ddp.forward(factor)).backward());
        expect(ddp.module.weight.grad?.dtype).toBe('float32');
        expect(ddp.module.weight.grad?.item()).toBe(257);
        await (await ddp.forward(1)).backward();
        await ddp.syncGradients();
        expect(ddp.module.weight.grad?.item()).toBe(258); // added in bfloat16, it would still be 256
      });
    },
  );

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

  test('a module is wrapped once at a time', () => {
    const model = new Mlp();
    const ddp = new DistributedDataParallel(model, ProcessGroup.mock());
    expect(() => new DistributedDataParallel(model, ProcessGroup.mock())).toThrow(
      "parameter 'fc1.weight' is wrapped already",
    );
    ddp.detach();
    expect(() => new DistributedDataParallel(model, ProcessGroup.mock())).not.toThrow();
  });

  test('options that do not parse name the path and the unknown key', () => {
    const wrap = (options: object) => () => new DistributedDataParallel(new Mlp(), ProcessGroup.mock(), options);
    expect(wrap({ bucketCapMb: 0 })).toThrow('DistributedDataParallel: options.bucketCapMb: ');
    expect(wrap({ bucketCapMB: 25 })).toThrow("options: unknown key 'bucketCapMB'. Known options: bucketCapMb");
    expect(wrap({ gradSync: 'Sometimes' })).toThrow('options.gradSync');
  });
});
