/** The state of a sharded optimizer is that of a plain one. */
import { AdamW } from '../../../src/optim/adam';
import type { Optimizer } from '../../../src/optim/optimizer';
import type { OptimizerState } from '../../../src/optim/optimizer-state';
import { SGD } from '../../../src/optim/sgd';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { mseLoss } from '../../../src/nn/losses';
import { Tensor } from '../../../src/tensor/tensor';
import { withFullParameters } from '../../../src/zero/full-parameters';
import { zeroWrap } from '../../../src/zero/zero';
import type { ZeroModule } from '../../../src/zero/zero-module';
import { runPortable } from '../ddp/models';
import { bitsOf, numbers } from './training';
import { Zoo } from './zoo';

const STAGES = [0, 1, 2, 3] as const;
const USE = { left: true, right: false };

const optimizers: Record<string, (zoo: Zoo) => Optimizer> = {
  AdamW: (zoo) => new AdamW([{ params: zoo.parameters().slice(0, 4) }, { params: zoo.parameters().slice(4), lr: 0.1 }]),
  SGD: (zoo) =>
    new SGD([{ params: zoo.parameters().slice(0, 4), momentum: 0.5 }, { params: zoo.parameters().slice(4) }], {
      lr: 0.1,
    }),
};

async function train(
  module: { forward: Zoo['forward'] },
  optimizer: { step(): Promise<void>; zeroGrad(): void },
  steps: readonly number[],
): Promise<void> {
  for (const seed of steps) {
    const x = Tensor.from(numbers(seed, 6), [2, 3]);
    await mseLoss(await module.forward(x, USE), Tensor.ones([2, 2])).backward();
    await optimizer.step();
    optimizer.zeroGrad();
  }
}

describe.each(Object.keys(optimizers))('%s', (name) => {
  const optimizerFor = optimizers[name] as (zoo: Zoo) => Optimizer;

  test.each(STAGES)('stage %i: stateDict is that of the plain optimizer under DDP, on every rank', async (stage) => {
    await runPortable(3, async ({ group }) => {
      const plain = new DistributedDataParallel(new Zoo(1), group, { findUnusedParameters: true });
      const plainOptimizer = optimizerFor(plain.module);
      await train(plain, plainOptimizer, [1, 2]);
      const { module, optimizer } = await zeroWrap(new Zoo(1), optimizerFor, group, { stage });
      await train(module, optimizer, [1, 2]);
      expect(await optimizer.stateDict()).toEqual(plainOptimizer.stateDict());
    });
  });

  test('a state goes from any stage to any other, and training goes on with the same bits', async () => {
    for (const [from, to] of [
      [1, 3],
      [3, 0],
      [0, 2],
    ] as const) {
      await runPortable(2, async ({ group }) => {
        const first = await zeroWrap(new Zoo(1), optimizerFor, group, { stage: from });
        await train(first.module, first.optimizer, [1]);
        const second = await zeroWrap(new Zoo(2), optimizerFor, group, { stage: to });
        const state: OptimizerState = await first.optimizer.stateDict();
        const model = await withFullParameters(first.module, () => first.module.stateDict());
        await withFullParameters(second.module, () => second.module.loadStateDict(model));
        second.optimizer.loadStateDict(state);
        await train(first.module, first.optimizer, [2]);
        await train(second.module, second.optimizer, [2]);
        const bits = (module: ZeroModule<Zoo>): Promise<string[]> =>
          withFullParameters(module, () => bitsOf(module.parameters()));
        expect(await bits(second.module)).toEqual(await bits(first.module));
        expect(() => second.optimizer.loadStateDict({ state: {}, paramGroups: [] })).toThrow(/0 groups/);
      });
    }
  });
});
