/** What may happen to gradients between two steps, in any order, without a wrong number. */
import { clipGradNorm } from '../../../src/optim/clip-grad-norm';
import { AdamW } from '../../../src/optim/adam';
import type { World } from '../../../src/process-group/world';
import { customFunction } from '../../../src/tensor/custom-function';
import type { Tensor } from '../../../src/tensor/tensor';
import { Mlp, batchOf, lossOf, runPortable } from '../ddp/models';
import { wrap, type Trained, type Way } from './training';

const WAYS = [0, 1, 2, 3] as const;

function wrapMlp(way: Way, world: World): Promise<Trained<Mlp>> {
  return wrap(way, new Mlp(world.rank), (mlp) => new AdamW(mlp.parameters(), { lr: 0.01 }), world);
}

async function loss({ forward }: Trained<Mlp>, seed: number, rank: number): Promise<Tensor> {
  return lossOf({ forward } as unknown as Mlp, batchOf(10 * seed + rank, 4));
}

/** Parameters on rank 0 after `program`, whose ranks must agree. */
async function resultOf(
  way: Way,
  program: (trained: Trained<Mlp>, world: World) => Promise<unknown>,
): Promise<string[]> {
  const [first, ...others] = await runPortable(3, async (world) => {
    const trained = await wrapMlp(way, world);
    await program(trained, world);
    return trained.bits();
  });
  for (const other of others) expect(other).toEqual(first);
  return first as string[];
}

/** The same program gives the bits of DDP at every stage. */
async function expectBitsOfDdp(program: (trained: Trained<Mlp>, world: World) => Promise<unknown>): Promise<void> {
  const expected = await resultOf('ddp', program);
  for (const way of WAYS) expect({ way, bits: await resultOf(way, program) }).toEqual({ way, bits: expected });
}

async function step(trained: Trained<Mlp>, world: World, seed: number): Promise<void> {
  await (await loss(trained, seed, world.rank)).backward();
  await trained.module.syncGradients();
  await trained.optimizer.step();
}

test('a step made twice uses the same averages twice', async () => {
  await expectBitsOfDdp(async (trained, world) => {
    await step(trained, world, 1);
    await trained.optimizer.step();
    trained.optimizer.zeroGrad();
    await trained.optimizer.step(); // nothing to do
    await step(trained, world, 2);
  });
});

test('a backward without a step leaves nothing behind once its gradients are dropped', async () => {
  await expectBitsOfDdp(async (trained, world) => {
    await step(trained, world, 1);
    trained.optimizer.zeroGrad();
    await (await loss(trained, 2, world.rank)).backward();
    await trained.module.syncGradients();
    trained.module.zeroGrad();
    trained.optimizer.zeroGrad();
    await step(trained, world, 3);
  });
});

test.each(WAYS)('stage %i: gradients that are dropped on their way do not arrive', async (way) => {
  const expected = await resultOf(way, (trained, world) => step(trained, world, 2));
  const dropped = await resultOf(way, async (trained, world) => {
    await (await loss(trained, 1, world.rank)).backward();
    trained.optimizer.zeroGrad(); // in flight
    await step(trained, world, 2);
  });
  expect(dropped).toEqual(expected);
});

test.each(WAYS)(
  'stage %i: the module, the model and the parameters drop gradients as the optimizer does',
  async (way) => {
    const drop = (how: (trained: Trained<Mlp>) => void): Promise<string[]> =>
      resultOf(way, async (trained, world) => {
        await (await loss(trained, 1, world.rank)).backward();
        await trained.module.syncGradients();
        how(trained);
        await step(trained, world, 2);
      });
    const expected = await drop(({ optimizer }) => optimizer.zeroGrad());
    expect(await drop(({ module }) => module.zeroGrad())).toEqual(expected);
    expect(await drop(({ model }) => model.zeroGrad())).toEqual(expected);
    const byHand = ({ model }: Trained<Mlp>): void =>
      model.parameters().forEach((parameter) => (parameter.grad = undefined));
    expect(await drop(byHand)).toEqual(expected);
  },
);

test('one gradient that is dropped is not stepped with', async () => {
  await expectBitsOfDdp(async (trained, world) => {
    await (await loss(trained, 1, world.rank)).backward();
    await trained.module.syncGradients();
    trained.model.fc1.weight.grad = undefined;
    await trained.optimizer.step();
  });
});

test('a NaN on one rank is a NaN on all', async () => {
  await expectBitsOfDdp(async (trained, world) => {
    const plain = await loss(trained, 1, world.rank);
    await plain.mul(world.rank === 1 ? NaN : 1).backward();
    await trained.module.syncGradients();
    await trained.optimizer.clipGradNorm(1);
    await trained.optimizer.step();
  });
});

test('gradients accumulated inside noSync are averaged once, by the next backward or by hand', async () => {
  await expectBitsOfDdp(async (trained, world) => {
    await trained.module.noSync(async () => (await loss(trained, 1, world.rank)).backward());
    await trained.module.noSync(async () => (await loss(trained, 2, world.rank)).backward());
    await trained.module.syncGradients();
    await trained.optimizer.step();
    trained.optimizer.zeroGrad();
    await trained.module.noSync(async () => (await loss(trained, 3, world.rank)).backward());
    await step(trained, world, 4);
  });
});

test.each(WAYS)('stage %i: synchronised backwards add up, to rounding', async (way) => {
  const program = async (trained: Trained<Mlp>, world: World): Promise<void> => {
    for (const seed of [1, 2, 3]) {
      await (await loss(trained, seed, world.rank)).backward();
      await trained.module.syncGradients();
    }
    await trained.optimizer.step();
  };
  const floats = (bits: readonly string[]): number[] =>
    bits.flatMap((hex) =>
      Array.from({ length: hex.length / 8 }, (_unused, i) => Buffer.from(hex, 'hex').readFloatLE(4 * i)),
    );
  const [actual, expected] = [floats(await resultOf(way, program)), floats(await resultOf('ddp', program))];
  actual.forEach((value, i) => expect(value).toBeCloseTo(expected[i] as number, 4));
});

/** An MLP whose backward fails half way, when it is told to. */
class Fragile extends Mlp {
  fails = false;

  override async forward(x: Tensor): Promise<Tensor> {
    const fuse = customFunction({
      forward: (h: Tensor) => h.mul(1),
      backward: (gradient) => {
        if (this.fails) throw new Error('no way back');
        return gradient;
      },
    });
    return this.fc2.forward(fuse(await this.fc1.forward(x)));
  }
}

describe('a backward that fails', () => {
  const program =
    (way: Way, recover: (trained: Trained<Fragile>) => void) =>
    async (world: World): Promise<string[]> => {
      const trained = await wrap(way, new Fragile(0), (model) => new AdamW(model.parameters(), { lr: 0.01 }), world);
      trained.model.fails = true;
      await expect((await loss(trained, 1, world.rank)).backward()).rejects.toThrow('no way back');
      trained.model.fails = false;
      recover(trained);
      await (await loss(trained, 2, world.rank)).backward();
      await trained.module.syncGradients();
      await trained.optimizer.step();
      return trained.bits();
    };

  test.each([0, 1, 2] as const)(
    'before anything was sent leaves local gradients at stage %i, as without ZeRO',
    async (way) => {
      for (const recover of [(): void => undefined, ({ optimizer }: Trained<Fragile>): void => optimizer.zeroGrad()]) {
        expect(await runPortable(3, program(way, recover))).toEqual(await runPortable(3, program('ddp', recover)));
      }
    },
  );

  test.each([0, 1, 2] as const)(
    'before anything was sent leaves nothing that stage %i would step with',
    async (way) => {
      await runPortable(2, async (world) => {
        const trained = await wrap(way, new Fragile(0), (model) => new AdamW(model.parameters()), world);
        trained.model.fails = true;
        await expect((await loss(trained, 1, world.rank)).backward()).rejects.toThrow('no way back');
        await expect(trained.optimizer.step()).rejects.toThrow(
          /'fc2.weight'.* not averaged .* backward\(\) that failed/,
        );
      });
    },
  );

  test('after a unit was sent ends the group, naming what to do', async () => {
    const failing = runPortable(
      2,
      program(3, () => undefined),
    );
    await expect(failing).rejects.toThrow(/failed after 1 of 2 buckets had been sent, so the ranks are out of step/);
  });
});

test.each(WAYS)('stage %i: gradients of one rank alone are refused by step and clipping', async (way) => {
  await runPortable(2, async (world) => {
    const trained = await wrapMlp(way, world);
    await trained.module.noSync(async () => (await loss(trained, 1, world.rank)).backward());
    await expect(trained.optimizer.step()).rejects.toThrow(/parameters 'fc.* not averaged .*syncGradients/);
    await expect(trained.optimizer.clipGradNorm(1)).rejects.toThrow(/optimizer.clipGradNorm\(\): parameters/);
    trained.optimizer.zeroGrad();
    await step(trained, world, 1);
  });
});

test.each(WAYS)('stage %i: what does not know of the shards is refused, naming what does', async (way) => {
  await runPortable(2, async (world) => {
    const model = new Mlp(0);
    const inner = new AdamW(model.parameters());
    const trained = await wrap(way, model, () => inner, world);
    await (await loss(trained, 1, world.rank)).backward();
    await expect(clipGradNorm(model.parameters(), 1)).rejects.toThrow(/optimizer that zeroWrap returned.*clipGradNorm/);
    await expect(inner.step()).rejects.toThrow(/optimizer.step\(\): .* zeroWrap returned/);
    await trained.optimizer.step();
  });
});

test.each(WAYS)('stage %i: calls that were not awaited are named', async (way) => {
  await runPortable(2, async (world) => {
    const trained = await wrapMlp(way, world);
    const pendingBackward = (await loss(trained, 1, world.rank)).backward();
    await expect(trained.optimizer.step()).rejects.toThrow(/backward\(\) was not awaited/);
    await pendingBackward;
    const pendingStep = trained.optimizer.step();
    const refused = [trained.optimizer.step(), loss(trained, 2, world.rank), trained.optimizer.clipGradNorm(1)];
    expect(() => trained.optimizer.zeroGrad()).toThrow(/step\(\) is still at work/);
    for (const call of refused) await expect(call).rejects.toThrow(/step\(\) is still at work/);
    await pendingStep;
    await step(trained, world, 3);
  });
});
