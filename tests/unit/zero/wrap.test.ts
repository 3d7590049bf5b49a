import { type LockstepError } from '../../../src/core/errors';
import { Linear } from '../../../src/nn/linear';
import { Sequential } from '../../../src/nn/sequential';
import { AdamW } from '../../../src/optim/adam';
import { Optimizer } from '../../../src/optim/optimizer';
import { SGD } from '../../../src/optim/sgd';
import type { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';
import { zeroWrap } from '../../../src/zero/zero';
import { Mlp, batchOf, lossOf, runPortable } from '../ddp/models';
import { bitsOf } from './training';

const sgd = (model: Mlp): SGD => new SGD(model.parameters(), { lr: 0.1 });

/** What zeroWrap says on one rank, wrapping `args`. */
async function refusalOf(...args: unknown[]): Promise<string> {
  const [message] = await runPortable(1, async ({ group }) => {
    const [module, optimizer, options] = args;
    return zeroWrap(module as Mlp, optimizer as SGD, group, options as never).then(
      () => 'accepted',
      (error: LockstepError) => error.message,
    );
  });
  return message as string;
}

describe('zeroWrap refuses, saying what to do,', () => {
  const model = new Mlp();

  test('options that do not parse', async () => {
    expect(await refusalOf(model, sgd, { stage: 4 })).toMatch(/zeroWrap: options.stage: expected 0, 1, 2 or 3/);
    expect(await refusalOf(model, sgd, { stage: 2, bucket: 1 })).toMatch(/unknown key 'bucket'.*Known options: stage/);
    expect(await refusalOf(model, sgd, { precision: 'fp16' })).toMatch(
      /options.precision: expected 'float32', 'bfloat16' or 'float16', got 'fp16'/,
    );
    expect(await refusalOf(model, sgd, null)).toMatch(/zeroWrap: options: expected an object, got null/);
    expect(await refusalOf(model, sgd, { lossScale: 128 })).toMatch(/lossScale: options: expected object, got 128/);
  });

  test('what is no module or optimizer', async () => {
    expect(await refusalOf(undefined, sgd)).toMatch(/expected a Module, or a function that builds one/);
    expect(await refusalOf(async () => model, sgd)).toMatch(/the function to return a Module/);
    expect(await refusalOf(() => new Mlp(), sgd(model))).toMatch(/the optimizer has to be one too/);
    expect(await refusalOf(model, {})).toMatch(/expected an Optimizer/);
    expect(await refusalOf(Mlp, sgd)).toMatch(/got the class Mlp. Pass `new Mlp\(\)`, .*`\(\) => new Mlp\(\)`/);
    expect(await refusalOf(model, SGD)).toMatch(
      /got the class SGD. Pass `\(module\) => new SGD\(module.parameters\(\)\)`/,
    );
  });

  test('an optimizer that looks at whole parameters', async () => {
    class Lars extends Optimizer {
      override readonly isElementwise = false;

      constructor(params: Tensor[]) {
        super(params, {}, () => ({ lr: 1 }));
      }

      override stateNames(): string[] {
        return [];
      }

      override update(): void {
        throw new Error('not reached');
      }
    }
    expect(await refusalOf(model, new Lars(model.parameters()))).toMatch(/Lars has isElementwise false/);
  });

  test("an optimizer of another module's parameters, or one that has been used", async () => {
    expect(await refusalOf(model, sgd(new Mlp()))).toMatch(/which the module does not list/);
    const used = new SGD(model.parameters(), { lr: 0 });
    await (await lossOf(model, batchOf(1, 2))).backward();
    await used.step();
    used.zeroGrad();
    expect(await refusalOf(model, used)).toMatch(/has state .* before the first step/);
  });

  test('a module without trainable parameters, or one that is wrapped', async () => {
    const frozen = new Mlp();
    for (const parameter of frozen.parameters()) parameter.requiresGrad = false;
    expect(await refusalOf(frozen, sgd)).toMatch(/no trainable parameter/);
    const wrapped = new Mlp();
    expect(await refusalOf(wrapped, sgd)).toBe('accepted');
    expect(await refusalOf(wrapped, sgd)).toMatch(/wrapped already.*detach/);
  });
});

test('what one rank refuses, or has otherwise, every rank refuses, and the group lives on', async () => {
  await runPortable(3, async ({ rank, group }) => {
    const wrong = zeroWrap(new Mlp(), sgd, group, { stage: rank === 1 ? (7 as never) : 2 });
    await expect(wrong).rejects.toThrow(rank === 1 ? /options.stage/ : /rank 1 refused: options.stage/);
    const other = zeroWrap(new Mlp(), sgd, group, { stage: rank === 2 ? 1 : 2 });
    await expect(other).rejects.toThrow(/option stage is 1 on rank 2, and 2 on rank 0/);
    const lr = zeroWrap(new Mlp(), (model) => new SGD(model.parameters(), { lr: 1 + rank }), group);
    await expect(lr).rejects.toThrow(/settings of optimizer group 0 is .*"lr":2/);
    const shape = zeroWrap(new Sequential(new Linear(2, 2 + rank)), (model) => new SGD(model.parameters()), group);
    await expect(shape).rejects.toThrow(/parameter or buffer 0 is '0.weight' \[3, 2\] float32 on rank 1/);
    await expect(zeroWrap(new Mlp(), sgd, group)).resolves.toBeDefined();
  });
});

test('a rank outside the group is refused', async () => {
  await runPortable(2, async ({ rank, group }) => {
    const first = await group.newGroup([0]);
    const wrapped = zeroWrap(new Mlp(), sgd, first);
    if (rank === 0) await wrapped;
    else await expect(wrapped).rejects.toThrow(/not a member of the group/);
    await first.close();
  });
});

test.each([0, 1, 2, 3] as const)(
  'stage %i: all ranks start from rank 0, also when a function builds the module',
  async (stage) => {
    const expected = bitsOf(new Mlp(5).parameters());
    for (const isFactory of [false, true]) {
      const results = await runPortable(3, async ({ rank, group }) => {
        const build = (): Mlp => new Mlp(5 + rank);
        const { module } = await zeroWrap(isFactory ? build : build(), sgd, group, { stage });
        await module.detach();
        return bitsOf(module.parameters());
      });
      for (const bits of results) expect(bits).toEqual(expected);
    }
  },
);

test.each([0, 1, 2, 3] as const)(
  'stage %i: a module that was let go of trains alone, and is wrapped again',
  async (stage) => {
    await runWorld(2, async ({ group }) => {
      const model = new Mlp();
      const first = await zeroWrap(model, sgd, group, { stage });
      await (await lossOf(first.module, batchOf(1, 2))).backward();
      await first.module.detach();
      expect(
        model.parameters().every(({ grad, gradientGate }) => grad === undefined && gradientGate === undefined),
      ).toBe(true);
      const alone = new AdamW(model.parameters());
      await (await lossOf(model, batchOf(1, 2))).backward();
      await alone.step();
      alone.zeroGrad();
      const second = await zeroWrap(model, sgd, group, { stage: 2 });
      await (await lossOf(second.module, batchOf(1, 2))).backward();
      await second.optimizer.step();
    });
  },
);
