/** Nothing of float32 parameters is lost where they are stored in 16 bits. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { Generator } from '../../../src/core/generator';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { withFullParameters } from '../../../src/zero/full-parameters';
import type { ZeroPrecision, ZeroStage } from '../../../src/zero/zero-options';
import { zeroWrap } from '../../../src/zero/zero';
import { bitsOf, numbers } from './training';

const STAGES: readonly ZeroStage[] = [0, 1, 2, 3];
const PRECISIONS: readonly ZeroPrecision[] = ['bfloat16', 'float16'];

const build = (seed = 1): Sequential => {
  const generator = new Generator(seed);
  return new Sequential(new Linear(3, 5, { generator }), new Linear(5, 2, { generator }));
};
const sgd = (model: Module): SGD => new SGD(model.parameters(), { lr: 0.5 });
const wide = (model: Sequential): number[][] => model.parameters().map((parameter) => [...parameter.data] as number[]);

describe.each(PRECISIONS)('%s', (precision) => {
  test.each(STAGES)('stage %i: masters start from the float32 parameters of rank 0', async (stage) => {
    for (const isFactory of [false, true]) {
      await runWorld(3, async ({ group, rank }) => {
        const made = (): Sequential => build(1 + rank);
        const { module, optimizer } = await zeroWrap(isFactory ? made : made(), sgd, group, { stage, precision });
        await (await module.forward(Tensor.zeros([1, 3]))).mul(0).sum().backward();
        await optimizer.step(); // by nothing
        const { state } = await optimizer.stateDict();
        expect(Object.values(state).map(({ master }) => [...(master as Tensor).data])).toEqual(wide(build()));
      });
    }
  });

  test('every stage trains to the same bits, frozen parameters included', async () => {
    const train = async (stage: ZeroStage) => {
      const [bits] = await runWorld(2, async ({ group, rank }) => {
        const model = build();
        const [first] = model;
        (first as Linear).weight.requiresGrad = false;
        const { module, optimizer } = await zeroWrap(model, sgd, group, { stage, precision });
        for (let step = 0; step < 3; step++) {
          const x = Tensor.from(numbers(10 * step + rank, 6), [2, 3]);
          await (await module.forward(x)).sum().backward();
          await optimizer.step();
          optimizer.zeroGrad();
        }
        return withFullParameters(module, () => {
          expect(model.parameters().map(({ dtype }) => dtype)).toEqual(['float32', precision, precision, precision]);
          return bitsOf(model.parameters());
        });
      });
      return bits;
    };
    const expected = await train(0);
    for (const stage of STAGES) expect(await train(stage)).toEqual(expected);
  });
});

test.each(STAGES)(
  'stage %i: a checkpoint from before the first step keeps them, and what was written since',
  async (stage) => {
    const directory = await mkdtemp(join(tmpdir(), 'lockstep-'));
    try {
      await runWorld(2, async ({ group }) => {
        const { module, optimizer } = await zeroWrap(build(), sgd, group, { stage, precision: 'bfloat16' });
        const bias = module.module.parameters()[1] as Parameter;
        await withFullParameters(module, () => bias.data.fill(0x3f80 as never)); // 1 in bfloat16
        await saveCheckpoint(directory, { model: module, optimizer }, group);
        const expected = wide(build()).map((values, index) => (index === 1 ? values.map(() => 1) : values));
        const plain = build(2);
        await loadCheckpoint(directory, { model: plain }, group);
        expect(wide(plain)).toEqual(expected);

        const other = await zeroWrap(build(3), sgd, group, {
          stage: ((stage + 1) % 4) as ZeroStage,
          precision: 'bfloat16',
        });
        await loadCheckpoint(directory, { model: other.module, optimizer: other.optimizer }, group);
        await (await other.module.forward(Tensor.zeros([1, 3]))).mul(0).sum().backward();
        await other.optimizer.step();
        const { state } = await other.optimizer.stateDict();
        expect(Object.values(state).map(({ master }) => [...(master as Tensor).data])).toEqual(expected);
      });
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  },
);

describe.each(PRECISIONS)('the inner module called directly in %s', (precision) => {
  test.each(STAGES)('stage %i: is refused, naming the way to call it, also for integer inputs', async (stage) => {
    class Lookup extends Module<[Tensor]> {
      readonly table = new Parameter(Tensor.ones([4, 2]));

      override forward(index: Tensor): Promise<Tensor> {
        return Promise.resolve(this.table.mul(index.size));
      }
    }
    await runWorld(2, async ({ group }) => {
      const model = new Lookup();
      const { module } = await zeroWrap(model, sgd, group, { stage, precision });
      const index = Tensor.from(Int32Array.of(1, 2));
      await expect(model.forward(index)).rejects.toThrow(/was called directly. Call the module that zeroWrap returned/);
      expect((await module.forward(index)).dtype).toBe('float32');
      await module.detach();
      expect((await model.forward(index)).shape).toEqual([4, 2]);
    });
  });
});
