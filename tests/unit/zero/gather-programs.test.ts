import { checkpoint } from '../../../src/activation-checkpoint/activation-checkpoint';
import { manualSeed } from '../../../src/core/random';
import type { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Sequential } from '../../../src/nn/sequential';
import { noGrad } from '../../../src/tensor/gradient-mode';
import type { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { batch, layer, LAYER_BYTES, parameterBytes, Stack, wrapUnits } from './stage3';

const strict = { portable: true, schedule: 'random', seed: 5 } as const;

describe('stage 3 gives the gradients of the module alone, however it is called', () => {
  class Twice extends Module {
    readonly fc = layer();
    override async forward(x: Tensor): Promise<Tensor> {
      return this.fc.forward((await this.fc.forward(x)).tanh());
    }
  }

  /** Calls what a container holds that has no forward. */
  class Container extends Module {
    readonly parts = [layer(), layer()];
    declare forward: (x: Tensor) => Promise<Tensor>;
  }

  class OverContainer extends Module {
    readonly inner = new Container();
    override async forward(x: Tensor): Promise<Tensor> {
      let y = x;
      for (const part of this.inner.parts) y = await part.forward(y);
      return y;
    }
  }

  class Checkpointed extends Module {
    readonly a = layer();
    readonly b = new Sequential(layer(), layer());
    override async forward(x: Tensor): Promise<Tensor> {
      const y = await checkpoint((z: Tensor) => this.a.forward(z), x);
      return checkpoint((z: Tensor) => this.b.forward(z), y.tanh());
    }
  }

  class Tied extends Module {
    readonly a = layer();
    readonly b = layer();
    constructor() {
      super();
      this.b.weight = this.a.weight;
    }
    override async forward(x: Tensor): Promise<Tensor> {
      return this.b.forward((await this.a.forward(x)).tanh());
    }
  }

  class SideBySide extends Module {
    readonly a = layer();
    readonly b = layer();
    override async forward(x: Tensor): Promise<Tensor> {
      const [a, b] = await Promise.all([this.a.forward(x), this.b.forward(x)]);
      return a.mul(b);
    }
  }

  const models: Record<string, () => Module> = {
    'a stack': () => new Stack(3),
    'a Sequential, nested': () => new Sequential(layer(), new Sequential(layer(), layer()), layer()),
    'a module called twice': () => new Twice(),
    'a container without forward': () => new OverContainer(),
    'recomputed parts': () => new Checkpointed(),
    'a tied weight': () => new Tied(),
    'two at once': () => new SideBySide(),
  };

  const cases = Object.entries(models).flatMap(([name, make]) =>
    [0, undefined].flatMap((mergeThreshold) =>
      [true, false].map((reshardAfterForward) => ({ name, make, mergeThreshold, reshardAfterForward })),
    ),
  );

  test.each(cases)(
    '$name, merged up to $mergeThreshold, resharding $reshardAfterForward',
    async ({ make, ...rest }) => {
      const { mergeThreshold, reshardAfterForward } = rest;
      await runWorld(
        2,
        async (world) => {
          manualSeed(1);
          const alone = make();
          manualSeed(1);
          const model = make();
          const { module } = await wrapUnits(model, world.group, { mergeThreshold, reshardAfterForward });
          const held = parameterBytes();
          for (let step = 0; step < 2; step++) {
            const [x, y] = [batch(step, true), batch(step, true)];
            const expected = await alone.forward(x);
            const output = await module.forward(y);
            expect(output.toArray()).toEqual(expected.toArray());
            await expected.sum().backward();
            await module.noSync(() => output.sum().backward());
            expect(y.grad?.toArray()).toEqual(x.grad?.toArray());
            expect(model.parameters().map((p) => p.grad?.toArray())).toEqual(
              alone.parameters().map((p) => p.grad?.toArray()),
            );
            expect(parameterBytes()).toBe(held);
          }
        },
        strict,
      );
    },
  );

  test('a child called without those above it', async () => {
    await runWorld(2, async (world) => {
      manualSeed(1);
      const model = new Sequential(new Sequential(layer(), layer()), layer());
      const inner = model[0] as Sequential;
      const x = batch(1);
      const expected = (await noGrad(() => (inner[1] as Linear).forward(x))).toArray();
      await wrapUnits(model, world.group, { mergeThreshold: 3 * LAYER_BYTES });
      expect((await (inner[1] as Linear).forward(x)).toArray()).toEqual(expected);
      expect(parameterBytes()).toBe(1.5 * LAYER_BYTES);
    });
  });

  test('what is recomputed in backward is gathered once for both', async () => {
    await runWorld(2, async (world, backend) => {
      const { module } = await wrapUnits(new Checkpointed(), world.group);
      const gathers = async (): Promise<number> => {
        const before = backend.ledger.allGather.calls;
        await (await module.forward(batch(1, true))).sum().backward();
        return backend.ledger.allGather.calls - before;
      };
      expect([await gathers(), await gathers()]).toEqual([6, 6]);
    });
  });
});
