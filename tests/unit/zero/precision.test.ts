import { autocast } from '../../../src/amp/autocast';
import { GradScaler } from '../../../src/amp/grad-scaler';
import type { DType } from '../../../src/core/dtype';
import { Generator } from '../../../src/core/generator';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { LayerNorm } from '../../../src/nn/normalization';
import { Linear } from '../../../src/nn/linear';
import { crossEntropy } from '../../../src/nn/losses';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { AdamW } from '../../../src/optim/adam';
import { SGD } from '../../../src/optim/sgd';
import type { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { withFullParameters } from '../../../src/zero/full-parameters';
import type { ZeroOptions, ZeroStage } from '../../../src/zero/zero-options';
import { zeroWrap } from '../../../src/zero/zero';
import { bitsOf, numbers } from './training';

const stages: readonly ZeroStage[] = [0, 1, 2, 3];

/** 5 inputs, 4 hidden, 3 classes, and what dtypes it saw. */
class Mlp extends Module {
  readonly seen: DType[] = [];
  readonly fc1: Linear;
  readonly norm = new LayerNorm(4);
  readonly fc2: Linear;

  constructor() {
    super();
    const generator = new Generator(3);
    this.fc1 = new Linear(5, 4, { generator });
    this.fc2 = new Linear(4, 3, { generator });
  }

  override async forward(x: Tensor): Promise<Tensor> {
    const hidden = await this.fc1.forward(x);
    const normed = await this.norm.forward(hidden);
    const output = await this.fc2.forward(normed.tanh());
    this.seen.push(hidden.dtype, normed.dtype, output.dtype);
    return output;
  }
}

/** One weight w, and losses w x / 16, so that a step subtracts the mean of x: scaled by 65536, a float16 holds x / 16. */
async function wrapOne(world: World, options: ZeroOptions, start = 1) {
  const layer = new Linear(1, 1, { bias: false });
  (layer.weight.data as Float32Array).set([start]);
  const { module, optimizer } = await zeroWrap(layer, new SGD(layer.parameters(), { lr: 16 }), world.group, options);
  const lossOf = async (x: Tensor | number): Promise<Tensor> => {
    return (await module.forward(typeof x === 'number' ? Tensor.full([1, 1], x) : x)).mul(1 / 16).sum();
  };
  const weight = (): Promise<number> => withFullParameters(module, () => layer.weight.item());
  return { module, optimizer, lossOf, weight };
}

const batch = (rank: number, step: number) => ({
  inputs: Tensor.from(numbers(10 * step + rank, 20), [4, 5]),
  labels: Tensor.from(Int32Array.of(0, 1, 2, 1)),
});

describe.each(['bfloat16', 'float16'] as const)('a module in %s', (precision) => {
  test.each(stages)('stage %i: stores it, computes as autocast does, and gives float32', async (stage) => {
    await runWorld(2, async (world) => {
      const model = new Mlp();
      const optimizer = new AdamW(model.parameters());
      const { module } = await zeroWrap(model, optimizer, world.group, { stage, precision });
      const output = await module.forward(batch(world.rank, 0).inputs);
      expect(model.parameters().map(({ dtype }) => dtype)).toEqual(new Array(6).fill(precision));
      expect(model.seen).toEqual([precision, 'float32', precision]);
      expect(output.dtype).toBe('float32');
    });
  });

  test.each(stages)('stage %i: masters sum up updates each of which would round to nothing', async (stage) => {
    await runWorld(2, async (world) => {
      const { optimizer, lossOf, weight } = await wrapOne(world, { stage, precision });
      for (let step = 0; step < 50; step++) {
        await (await lossOf(2e-4)).backward();
        await optimizer.step();
        optimizer.zeroGrad();
      }
      expect(await weight()).toBe(Tensor.from([0.99]).to(precision).item());
    });
  });
});

test('in bfloat16 every stage has the bits of DDP over a module in bfloat16', async () => {
  const train = async (way: 'ddp' | ZeroStage): Promise<string[]> => {
    const [bits] = await runWorld(2, async (world) => {
      const model = new Mlp();
      const made = (): AdamW => new AdamW(model.parameters(), { lr: 0.05 });
      const wrap = async () => {
        model.to('bfloat16'); // both start from what is rounded
        if (way !== 'ddp') return zeroWrap(model, made(), world.group, { stage: way, precision: 'bfloat16' });
        const module = new DistributedDataParallel(model, world.group);
        return { module, optimizer: made() };
      };
      const { module, optimizer } = await wrap();
      for (let step = 0; step < 4; step++) {
        const { inputs, labels } = batch(world.rank, step);
        const output = await autocast({ dtype: 'bfloat16' }, () => module.forward(inputs));
        await crossEntropy(output.to('float32'), labels).backward();
        await module.syncGradients();
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return withFullParameters(module, () => bitsOf(model.parameters()));
    });
    return bits as string[];
  };
  const expected = await train('ddp');
  for (const stage of stages) expect(await train(stage)).toEqual(expected);
});

test('a loss scale with options that do not parse, or without float16, is refused', async () => {
  await runWorld(2, async (world) => {
    const options = (lossScale: object, precision: 'float16' | 'bfloat16') => {
      return expect(wrapOne(world, { precision, lossScale })).rejects;
    };
    await options({ growthFactor: 0 }, 'float16').toThrow('zeroWrap: lossScale: options.growthFactor');
    await options({}, 'bfloat16').toThrow("with precision 'float16' alone, got 'bfloat16'");
  });
});

describe('tensors that cross the edge of a module in float16', () => {
  /** Neither array nor plain object. */
  class Holder {
    constructor(readonly inside: unknown) {}
  }

  /** Multiplies what `open` finds in the input, and gives the product as `close` makes it. */
  class Edges extends Module<[unknown], unknown> {
    readonly weight = new Parameter(Tensor.full([1], 2));

    constructor(
      readonly open: (input: never) => Tensor,
      readonly close: (output: Tensor) => unknown,
    ) {
      super();
    }

    override async forward(input: unknown): Promise<unknown> {
      return this.close(this.open(input as never).mul(this.weight));
    }
  }

  const plainly = (x: Tensor): Tensor => x;

  /** The forward of such a module, with an input of 3 that needs a gradient or not. */
  async function cross(
    make: (q: Tensor, module: Edges) => unknown,
    open: (input: never) => Tensor,
    close: (output: Tensor, module: Edges) => unknown,
    { precision = 'float16', requiresGrad = true }: { precision?: 'float16' | 'bfloat16'; requiresGrad?: boolean } = {},
  ): Promise<unknown> {
    const [result] = await runWorld(1, async ({ group }) => {
      const model: Edges = new Edges(open, (output) => close(output, model));
      const { module } = await zeroWrap(model, new SGD(model.parameters(), { lr: 1 }), group, { precision });
      return module.forward(make(Tensor.full([1], 3, { requiresGrad }), model));
    });
    return result;
  }

  test.each<[string, string, (q: Tensor) => unknown, (input: never) => Tensor]>([
    ['a Map', 'Map', (q) => new Map([['t', q]]), (map: Map<string, Tensor>) => map.get('t') as Tensor],
    [
      'an instance',
      'Holder',
      (q) => [{ at: new Holder([q]) }],
      ([{ at }]: [{ at: Holder }]) => (at.inside as Tensor[])[0] as Tensor,
    ],
    ['a Set, and beside it', 'Set', (q) => [q, new Set([q])], ([q]: [Tensor]) => q],
  ])('an input inside %s is refused, if it needs a gradient', async (_name, holder, make, open) => {
    const message = new RegExp(`forward: the input has .* inside a ${holder}.*Pass it as a tensor`);
    await expect(cross(make, open, plainly)).rejects.toThrow(message);
    await cross(make, open, plainly, { requiresGrad: false });
    await cross(make, open, plainly, { precision: 'bfloat16' });
  });

  test.each<[string, (y: Tensor, module: Edges) => unknown]>([
    ['Map', (y) => new Map([['y', y]])],
    ['Holder', (y) => ({ a: y, b: new Holder(y) })],
    ['Set', (y, { weight }) => [y, new Set([weight])]],
  ])('an output inside a %s is refused', async (holder, close) => {
    const message = new RegExp(`forward: the output has .* inside a ${holder}.*Return it as a tensor`);
    await expect(cross(plainly, plainly, close)).rejects.toThrow(message);
  });

  test('what needs no gradient may be anywhere, and so may the module', async () => {
    const make = (q: Tensor, module: Edges): unknown => [
      { q },
      new Holder(module),
      new Map([['mask', Tensor.ones([2])]]),
    ];
    const close = (y: Tensor, module: Edges): unknown => [{ y }, new Holder([module, y.detach(), 1, null])];
    await cross(make, ([{ q }]: [{ q: Tensor }]) => q, close);
  });
});

describe.each(stages)('the loss scale of float16, stage %i', (stage) => {
  const options: ZeroOptions = { stage, precision: 'float16' };

  test('saves gradients below the smallest float16', async () => {
    await runWorld(2, async (world) => {
      const { optimizer, lossOf, weight } = await wrapOne(world, options, 0);
      const tiny = 2 ** -22; // a gradient of 2^-26
      for (let step = 0; step < 4; step++) {
        await (await lossOf(1)).mul(tiny).backward();
        await optimizer.step();
        optimizer.zeroGrad();
      }
      expect(await weight()).toBe(-4 * tiny);
    });
  });

  test('leaves the gradients of inputs, norms and clipped gradients as they would be without', async () => {
    await runWorld(2, async (world) => {
      const { optimizer, lossOf, weight } = await wrapOne(world, options);
      const x = Tensor.full([1, 1], 4, { requiresGrad: true });
      await (await lossOf(x)).backward();
      expect(x.grad?.item()).toBe(1 / 16);
      expect(await optimizer.clipGradNorm(1 / 8)).toBe(4 / 16);
      await optimizer.step();
      expect(await weight()).toBeCloseTo(-1, 3);
    });
  });

  test('one rank alone that overflows: all leave the step out and halve the scale, and go on', async () => {
    const results = await runWorld(3, async (world) => {
      const { optimizer, lossOf, weight } = await wrapOne(world, options);
      const outcomes = [];
      for (const x of [world.rank === 1 ? Infinity : 1, 1]) {
        await (await lossOf(x)).backward();
        await optimizer.step();
        outcomes.push(optimizer.isStepSkipped, optimizer.lossScale, await weight());
        optimizer.zeroGrad();
      }
      return outcomes;
    });
    expect(results).toEqual(new Array(3).fill([true, 32768, 1, false, 32768, 0]));
  });

  test('accumulates over noSync and over backwards', async () => {
    await runWorld(2, async (world) => {
      const { module, optimizer, lossOf, weight } = await wrapOne(world, options);
      await module.noSync(async () => (await lossOf(0.25)).backward());
      await (await lossOf(0.25)).backward();
      await (await lossOf(0.25)).backward();
      await optimizer.step();
      expect(await weight()).toBe(0.25);
    });
  });

  test('stands aside where a GradScaler has scaled the loss', async () => {
    await runWorld(2, async (world) => {
      const { optimizer, lossOf, weight } = await wrapOne(world, options);
      const scaler = new GradScaler({ initScale: 1024 });
      const losses = [0.25, world.rank === 0 ? NaN : 1, 0.25];
      const isStepped = [];
      for (const slope of losses) {
        await scaler.scale(await lossOf(slope)).backward();
        isStepped.push(await scaler.step(optimizer));
        await scaler.update();
        optimizer.zeroGrad();
      }
      expect(isStepped).toEqual([true, false, true]);
      expect(await weight()).toBe(0.5);
      expect([scaler.getScale(), optimizer.lossScale]).toEqual([512, 65536]);
    });
  });

  test('refuses what does not fit together', async () => {
    await runWorld(2, async (world) => {
      const { optimizer, lossOf } = await wrapOne(world, options);
      const scaler = new GradScaler();
      await scaler.scale(await lossOf(1)).backward();
      await expect(optimizer.step()).rejects.toThrow('optimizer.step(): a GradScaler has scaled these gradients');
      optimizer.zeroGrad();
      await (await lossOf(1)).backward();
      await expect(scaler.unscale(optimizer)).rejects.toThrow('zeroWrap with float16 has scaled these gradients');
      await optimizer.step();
      await expect((await lossOf(1)).backward()).rejects.toThrow('Call optimizer.zeroGrad() before it');
      optimizer.zeroGrad();
      await (await lossOf(1)).backward();
      await optimizer.step();
    });
  });
});
