import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import type { Linear } from '../../../src/nn/linear';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { withFullParameters } from '../../../src/zero/full-parameters';
import { batch, LAYER_BYTES, parameterBytes, Stack, WIDTH, wrapUnits } from './stage3';

const DEPTH = 3;
const strict = { portable: true, schedule: 'random', seed: 3 } as const;

describe('withFullParameters', () => {
  test.each([1, 2, 3])('on %i ranks gives the parameters back, and takes them away', async (size) => {
    await runWorld(
      size,
      async (world) => {
        const values = new Stack(DEPTH).parameters().map((parameter) => parameter.toArray());
        const model = new Stack(DEPTH);
        const { module } = await wrapUnits(model, world.group);
        const read = (): unknown => model.parameters().map((parameter) => parameter.toArray());
        expect(await withFullParameters(module, read)).toEqual(values);
        const held = await withFullParameters(module, async () => {
          await Promise.resolve();
          return [parameterBytes(), Object.keys(module.stateDict()).length];
        });
        expect(held[1]).toBe(DEPTH);
        expect(held[0]).toBeGreaterThanOrEqual(DEPTH * LAYER_BYTES);
        expect(read).toThrow('released');
      },
      strict,
    );
  });

  test('keeps what is changed inside, where fn throws too, and training goes on from there', async () => {
    const states = await runWorld(
      3,
      async (world) => {
        const model = new Stack(DEPTH, world.rank);
        const { module, optimizer } = await wrapUnits(model, world.group);
        const other = new Stack(DEPTH, 77);
        await withFullParameters(module, () => module.loadStateDict({ ...other.stateDict() }));
        const failing = withFullParameters(module, () => {
          model.layers[1]?.weight.data.fill(0.5 as never);
          throw new Error('no luck');
        });
        await expect(failing).rejects.toThrow('no luck');
        other.layers[1]?.weight.data.fill(0.5 as never);
        const x = batch(1);
        const [ours, theirs] = await noGrad(async () => [await module.forward(x), await other.forward(x)]);
        expect(ours?.toArray()).toEqual(theirs?.toArray());
        await (await module.forward(x)).sum().backward();
        await optimizer.step();
        return withFullParameters(module, () => model.layers.map(({ weight }) => weight.toArray()));
      },
      strict,
    );
    expect(states[1]).toEqual(states[0]);
    expect(states[2]).toEqual(states[0]);
  });

  test('may be nested, take a part of the model, and run the module', async () => {
    await runWorld(
      2,
      async (world) => {
        const model = new Stack(DEPTH);
        const { module } = await wrapUnits(model, world.group);
        const [first, second] = model.layers as [Linear, Linear];
        const parts = parameterBytes();
        await withFullParameters(first, async () => {
          expect(first.weight.size).toBe(first.weight.data.length);
          expect(() => second.weight.data).toThrow("'layers.1.weight' is released");
          await withFullParameters(module, async () => {
            const x = batch(2, true);
            await (await module.forward(x)).sum().backward();
            second.weight.data.fill(0.25 as never);
          });
          first.weight.data.fill(0.75 as never);
        });
        await module.syncGradients();
        expect(parameterBytes()).toBe(parts);
        const after = await withFullParameters(module, () => [first.weight.data[5], second.weight.data[5]]);
        expect(after).toEqual([0.75, 0.25]);
      },
      strict,
    );
  });

  test('makes a graph that was recorded before a change unusable, and only that', async () => {
    await runWorld(2, async (world) => {
      const model = new Stack(1);
      const { module } = await wrapUnits(model, world.group);
      const run = async (change: () => void): Promise<void> => {
        const loss = (await module.forward(batch(1))).sum();
        await withFullParameters(module, change);
        await module.noSync(() => loss.backward());
      };
      await run(() => undefined);
      await expect(run(() => void model.layers[0]?.weight.data.fill(2 as never))).rejects.toThrow('changed in place');
    });
  });

  test('refuses a step inside, since it would be half undone', async () => {
    await runWorld(2, async (world) => {
      const { module, optimizer } = await wrapUnits(new Stack(1), world.group);
      await (await module.forward(batch(1))).sum().backward();
      await withFullParameters(module, async () => {
        await expect(optimizer.step()).rejects.toThrow('withFullParameters() is still at work');
      });
      await optimizer.step();
    });
  });

  test('just runs fn for a module that is whole anyway', async () => {
    const model = new Stack(1);
    expect(await withFullParameters(model, () => model.layers[0]?.weight.shape)).toEqual([WIDTH, WIDTH]);
    await runWorld(2, async (world) => {
      const { module } = await wrapUnits(new Stack(1), world.group, { stage: 2 });
      expect(await withFullParameters(module, () => Object.keys(module.stateDict()))).toEqual(['layers.0.weight']);
    });
  });
});

describe('a model made by a factory', () => {
  test('has the bits of one that was there before, and rank 0 decides', async () => {
    await runWorld(
      3,
      async (world) => {
        const expected = new Stack(DEPTH, 10).parameters().map(({ data }) => data);
        const { module } = await wrapUnits(() => new Stack(DEPTH, 10 + world.rank), world.group);
        expect(await withFullParameters(module, () => module.parameters().map(({ data }) => data.slice()))).toEqual(
          expected,
        );
      },
      strict,
    );
  });

  test('takes no more memory than the parts and one unit', async () => {
    const size = 4;
    const depth = 12;
    await runWorld(size, async (world) => {
      memory.resetPeak();
      const { module, optimizer } = await wrapUnits(() => new Stack(depth), world.group);
      const parts = (depth * LAYER_BYTES) / size;
      expect(memory.totals().peak).toBeLessThanOrEqual(parts + LAYER_BYTES);
      expect(parameterBytes()).toBe(parts);
      await (await module.forward(Tensor.randn([1, WIDTH], { generator: new Generator(1) }))).sum().backward();
      await optimizer.step();
      expect(parameterBytes()).toBe(parts);
    });
  });
});
