/** Ranks that have not updated the same parameters would go on with different ones: the next collective tells. */
import { CollectiveMismatchError } from '../../../src/core/errors';
import { SGD } from '../../../src/optim/sgd';
import { runWorld } from '../../../src/testing/run-world';
import { zeroWrap } from '../../../src/zero/zero';
import { withFullParameters } from '../../../src/zero/full-parameters';
import { Mlp, batchOf, lossOf } from '../ddp/models';

type Optimizer = Awaited<ReturnType<typeof wrapMlp>>['optimizer'];

function wrapMlp(group: Parameters<typeof zeroWrap>[2], stage: 0 | 1 | 2 | 3) {
  const model = new Mlp();
  return zeroWrap(model, new SGD(model.parameters(), { lr: 0.1 }), group, { stage });
}

/** Two steps, the second one as `stray` makes it on rank 1, and what comes then. */
async function train(stage: 0 | 1 | 2 | 3, stray: (optimizer: Optimizer, model: Mlp) => Promise<void>): Promise<void> {
  await runWorld(2, async ({ group, rank }) => {
    const { module, optimizer } = await wrapMlp(group, stage);
    for (let step = 0; step < 3; step++) {
      await (await lossOf(module, batchOf(rank, 2))).backward();
      if (step === 1 && rank === 1) await stray(optimizer, module.module);
      else await optimizer.step();
      optimizer.zeroGrad();
    }
    await withFullParameters(module, () => undefined);
  });
}

describe.each([0, 1, 2, 3] as const)('stage %i', (stage) => {
  test('ranks that keep in step are left alone', async () => {
    await train(stage, (optimizer) => optimizer.step());
  });

  test('a rank that leaves out a step', async () => {
    const run = train(stage, async () => undefined);
    await expect(run).rejects.toMatchObject({ cause: expect.any(CollectiveMismatchError) });
    await expect(run).rejects.toThrow(/rank 0: .* after step 2 .*\n.*rank 1: .* after step 1 /);
  });

  test('a rank that drops its gradients before a step', async () => {
    const run = train(stage, async (optimizer) => {
      optimizer.zeroGrad();
      await optimizer.step();
    });
    await expect(run).rejects.toMatchObject({ cause: expect.any(CollectiveMismatchError) });
  });

  test('a rank that drops the gradient of one parameter before a step', async () => {
    const run = train(stage, async (optimizer, model) => {
      model.fc1.weight.grad = undefined;
      await optimizer.step();
    });
    await expect(run).rejects.toMatchObject({ cause: expect.any(CollectiveMismatchError) });
    await expect(run).rejects.toThrow(/step 2 \((4|8) updates.*\n.*step 2 \((3|7) updates/);
  });
});
