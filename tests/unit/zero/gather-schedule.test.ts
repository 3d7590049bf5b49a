import { memory } from '../../../src/core/memory-account';
import type { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { customFunction } from '../../../src/tensor/custom-function';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { batch, layer, LAYER_BYTES, parameterBytes, peakParameterBytes, Stack, WIDTH, wrapUnits } from './stage3';

const DEPTH = 5;
const MODEL_BYTES = DEPTH * LAYER_BYTES;
const strict = { portable: true, schedule: 'random', seed: 5 } as const;

describe('stage 3, while a module runs', () => {
  test.each([1, 2, 3, 4])('a rank of %i holds its parts, and a unit or two on top', async (size) => {
    await runWorld(
      size,
      async (world) => {
        const { module, optimizer } = await wrapUnits(new Stack(DEPTH), world.group);
        const parts = MODEL_BYTES / size;
        expect(parameterBytes()).toBe(parts);
        for (let step = 0; step < 2; step++) {
          memory.resetPeak();
          const loss = (await module.forward(batch(world.rank, true))).sum();
          expect(parameterBytes()).toBe(parts);
          await loss.backward();
          expect(parameterBytes()).toBe(parts);
          expect(peakParameterBytes()).toBeLessThanOrEqual(parts + 2 * LAYER_BYTES);
          await optimizer.step();
          optimizer.zeroGrad();
          expect(parameterBytes()).toBe(parts);
        }
      },
      strict,
    );
  });

  test('without prefetch it is one unit', async () => {
    await runWorld(2, async (world) => {
      const { module } = await wrapUnits(new Stack(DEPTH), world.group, { prefetch: false });
      memory.resetPeak();
      for (let step = 0; step < 2; step++) await (await module.forward(batch(1, true))).sum().backward();
      expect(peakParameterBytes()).toBe(MODEL_BYTES / 2 + LAYER_BYTES);
    });
  });

  test.each([
    [true, 3],
    [false, 2],
  ])('reshardAfterForward %p: a step sends %i (N-1)/N of the model', async (reshardAfterForward, times) => {
    const size = 3;
    await runWorld(
      size,
      async (world, backend) => {
        const { module, optimizer } = await wrapUnits(new Stack(DEPTH), world.group, { reshardAfterForward });
        const sent = (): number => backend.ledger.allGather.bytes + backend.ledger.reduceScatter.bytes;
        for (let step = 0; step < 3; step++) {
          const before = sent();
          await (await module.forward(batch(world.rank))).sum().backward();
          await optimizer.step();
          optimizer.zeroGrad();
          expect(sent() - before).toBe((times * MODEL_BYTES * (size - 1)) / size);
        }
      },
      strict,
    );
  });

  test('from the second pass on, the unit that comes next is on its way while one computes', async () => {
    await runWorld(2, async (world) => {
      const { module } = await wrapUnits(new Stack(DEPTH), world.group);
      let started = 0;
      world.group.on('collectiveStart', ({ op }) => (started += op === 'allGather' ? 1 : 0));
      const gathers: number[][] = [];
      for (let pass = 0; pass < 2; pass++) {
        const seen: number[] = [];
        started = 0;
        const removals = module.module.layers.map((one) => one.registerForwardHook(() => seen.push(started)));
        await noGrad(() => module.forward(batch(1)));
        removals.forEach((remove) => remove());
        gathers.push(seen);
      }
      expect(gathers).toEqual([
        [1, 2, 3, 4, 5],
        [2, 3, 4, 5, 5],
      ]);
    });
  });

  test('a pass that goes another way gets what it needs, and leaves nothing behind', async () => {
    await runWorld(
      2,
      async (world) => {
        const { module } = await wrapUnits(new Stack(4), world.group);
        const { layers } = module.module;
        const [a, b, c, d] = layers as [Linear, Linear, Linear, Linear];
        const x = batch(1);
        await noGrad(() => module.forward(x));
        for (const path of [[a, c], [d], [b, a, d], [a, b, c, d]]) {
          layers.splice(0, layers.length, ...path);
          await noGrad(() => module.forward(x));
          expect(parameterBytes()).toBe(2 * LAYER_BYTES);
        }
      },
      strict,
    );
  });

  test.each([true, false])(
    'nothing stays gathered under noGrad (reshardAfterForward %p)',
    async (reshardAfterForward) => {
      await runWorld(2, async (world) => {
        const { module } = await wrapUnits(new Stack(2), world.group, { reshardAfterForward });
        module.eval();
        for (let pass = 0; pass < 2; pass++) {
          await noGrad(() => module.forward(batch(1)));
          expect(parameterBytes()).toBe(LAYER_BYTES);
        }
      });
    },
  );

  test('a graph that nobody goes back through keeps units until the next step only', async () => {
    await runWorld(2, async (world) => {
      const { module, optimizer } = await wrapUnits(new Stack(2), world.group, { reshardAfterForward: false });
      await (await module.forward(batch(1))).sum().backward();
      await module.forward(batch(1));
      expect(parameterBytes()).toBe(3 * LAYER_BYTES);
      await optimizer.step();
      expect(parameterBytes()).toBe(LAYER_BYTES);
      const after = await noGrad(() => module.forward(batch(1)));
      expect(after.toArray()).toEqual((await noGrad(() => module.forward(batch(1)))).toArray());
    });
  });

  test('a graph of before the step is refused after it', async () => {
    await expect(
      runWorld(2, async (world) => {
        const { module, optimizer } = await wrapUnits(new Stack(2), world.group);
        const old = (await module.forward(batch(1))).sum();
        await (await module.forward(batch(1))).sum().backward();
        await optimizer.step();
        await old.backward();
      }),
    ).rejects.toThrow('changed in place');
  });
});

describe('stage 3, after something went wrong', () => {
  class Failing extends Module {
    readonly before = layer();
    readonly after = layer();
    isFailing = true;

    override async forward(x: Tensor): Promise<Tensor> {
      const y = await this.before.forward(x);
      if (this.isFailing) throw new Error('no luck');
      return this.after.forward(y);
    }
  }

  test('a forward that throws releases, and the next one is all right', async () => {
    await runWorld(
      2,
      async (world) => {
        const { module } = await wrapUnits(new Failing(), world.group);
        for (const isFailing of [false, true, true, false]) {
          module.module.isFailing = isFailing;
          const run = module.forward(batch(1));
          if (isFailing) await expect(run).rejects.toThrow('no luck');
          else await (await run).sum().backward();
          expect(parameterBytes()).toBe(LAYER_BYTES);
        }
        await module.syncGradients();
      },
      strict,
    );
  });

  test.each([true, false])('a backward that throws releases (reshardAfterForward %p)', async (reshardAfterForward) => {
    await runWorld(
      2,
      async (world) => {
        const { module, optimizer } = await wrapUnits(new Stack(3), world.group, { reshardAfterForward });
        const fail = customFunction({
          forward: (x: Tensor) => x,
          backward: () => {
            throw new Error('no luck');
          },
        });
        const [first] = module.module.layers as [Linear];
        const method = first.forward;
        first.forward = async (x) => fail(await method(x));
        const loss = (await module.forward(batch(1))).sum();
        await expect(module.noSync(() => loss.backward())).rejects.toThrow('no luck');
        expect(parameterBytes()).toBe(1.5 * LAYER_BYTES);
        first.forward = method;
        optimizer.zeroGrad();
        await (await module.forward(batch(1))).sum().backward();
        await optimizer.step();
        expect(parameterBytes()).toBe(1.5 * LAYER_BYTES);
      },
      strict,
    );
  });

  test('an operator on a released parameter throws, naming it and what to do', async () => {
    await runWorld(2, async (world) => {
      const { module } = await wrapUnits(new Stack(1), world.group);
      const weight = module.module.layers[0]?.weight as Tensor;
      for (const use of [() => weight.mul(2), () => weight.reshape(-1), () => weight.toArray(), () => weight.data]) {
        expect(use).toThrow(/'layers\.0\.weight' is released on rank \d.*withFullParameters/);
      }
      expect(() => module.stateDict()).toThrow('withFullParameters');
      expect(() => module.loadStateDict({ 'layers.0.weight': Tensor.ones([WIDTH, WIDTH]) })).toThrow(
        'withFullParameters',
      );
    });
  });
});
