/** What ZeRO tells while it averages gradients, and what it refuses. */
import type { AnyModule } from '../../../src/nn/any-module';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { SGD } from '../../../src/optim/sgd';
import { customFunction } from '../../../src/tensor/custom-function';
import { enableGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { zeroWrap } from '../../../src/zero/zero';
import { Branches, Mlp, batchOf, lossOf, runPortable } from '../ddp/models';

const STAGES = [0, 1, 2, 3] as const;
const sgd = (model: AnyModule): SGD => new SGD(model.parameters(), { lr: 0.1 });

test.each(STAGES)('stage %i: listeners hear of every bucket and of the end', async (stage) => {
  await runPortable(2, async ({ group }) => {
    const { module, optimizer } = await zeroWrap(new Mlp(), sgd, group, { stage, bucketCapMb: 1e-6 });
    const heard: string[] = [];
    module.on('bucketLaunched', ({ bucket, numElements }) => heard.push(`launched ${bucket} of ${numElements}`));
    module.on('bucketDone', ({ bucket, bytes }) => heard.push(`done ${bucket} of ${bytes}`));
    module.on('stepEnd', ({ buckets, bytes }) => heard.push(`end ${buckets} of ${bytes}`));
    await (await lossOf(module, batchOf(1, 2))).backward();
    await optimizer.step();
    const units = stage === 3 ? [56, 27] : [3, 24, 8, 48];
    expect(heard.filter((line) => line.startsWith('launched')).sort()).toEqual(
      units.map((numElements, bucket) => `launched ${bucket} of ${numElements}`),
    );
    expect(heard.filter((line) => line.startsWith('done'))).toHaveLength(units.length);
    expect(heard.at(-1)).toMatch(new RegExp(`^end ${units.length} of `));
  });
});

test.each(STAGES)(
  'stage %i: without findUnusedParameters a missing gradient is an error that names it',
  async (stage) => {
    const run = runPortable(2, async ({ rank, group }) => {
      const { module } = await zeroWrap(new Branches(), sgd, group, { stage, findUnusedParameters: false });
      const use = { left: true, right: rank === 0 };
      await (await module.forward(Tensor.ones([2]), use)).sum().backward();
      await module.syncGradients();
    });
    await expect(run).rejects.toThrow(/parameter 'right' got no gradient in this backward on rank 1/);
  },
);

test.each(STAGES)('stage %i: a Parameter that the module does not list is refused', async (stage) => {
  const run = runPortable(1, async ({ group }) => {
    const stray = new Parameter(Tensor.ones([3]), { name: 'stray' });
    const { module } = await zeroWrap(new Mlp(), sgd, group, { stage });
    const loss = (await lossOf(module, batchOf(1, 2))).add(stray.sum());
    await loss.backward();
  });
  await expect(run).rejects.toThrow(/reached the Parameter 'stray' of shape \[3\], which zeroWrap does not shard/);
});

test.each([0, 1, 2] as const)(
  'stage %i: a gradient that nobody announced is refused once its bucket is gone',
  async (stage) => {
    class Hidden extends Module {
      readonly first = new Parameter(Tensor.ones([2]));
      readonly last = new Parameter(Tensor.ones([2]));

      override async forward(x: Tensor): Promise<Tensor> {
        const nested = customFunction({
          forward: (h: Tensor) => h.mul(1),
          backward: async (gradient) => {
            await enableGrad(() => this.last.mul(2)).backward(gradient);
            return gradient;
          },
        });
        return nested(x.mul(this.first));
      }
    }
    const run = runPortable(1, async ({ group }) => {
      const { module } = await zeroWrap(new Hidden(), sgd, group, { stage, bucketCapMb: 1e-6 });
      await (await module.forward(Tensor.ones([2]))).sum().backward();
    });
    await expect(run).rejects.toThrow(/'last' came on rank 0 after its bucket had been sent.*hiddenLeaves/);
  },
);

test.each(STAGES)(
  'stage %i: parameters in no group are averaged and left alone; one that is added later is updated',
  async (stage) => {
    await runPortable(2, async ({ group }) => {
      const inner = (model: Mlp): SGD => new SGD([model.fc1.weight], { lr: 0.1 });
      let optimizerInside: SGD | undefined;
      const { module, optimizer } = await zeroWrap(new Mlp(), (model) => (optimizerInside = inner(model)), group, {
        stage,
      });
      const step = async (): Promise<void> => {
        await (await lossOf(module, batchOf(1, 2))).backward();
        await optimizer.step();
        optimizer.zeroGrad();
      };
      await step();
      optimizerInside?.addParamGroup({ params: [module.module.fc2.weight], lr: 0.2 });
      await step();
      await module.detach();
      const fresh = new Mlp();
      const isEqual = (a: Tensor, b: Tensor): boolean => JSON.stringify(a.toArray()) === JSON.stringify(b.toArray());
      expect(isEqual(module.module.fc1.weight, fresh.fc1.weight)).toBe(false);
      expect(isEqual(module.module.fc2.weight, fresh.fc2.weight)).toBe(false);
      expect(isEqual(module.module.fc2.bias as Tensor, fresh.fc2.bias as Tensor)).toBe(true);
    });
  },
);
