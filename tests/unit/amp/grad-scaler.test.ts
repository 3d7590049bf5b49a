import { GradScaler, type GradScalerOptions } from '../../../src/amp/grad-scaler';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Linear } from '../../../src/nn/linear';
import { Parameter } from '../../../src/nn/parameter';
import { AdamW } from '../../../src/optim/adam';
import { SGD } from '../../../src/optim/sgd';
import { BackwardSession } from '../../../src/tensor/backward-session';
import { customFunction } from '../../../src/tensor/custom-function';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';

const weight = (value = 1) => new Parameter(Tensor.from([value]));

/** A parameter of value 1, an optimizer with rate 1, and a loss whose slope is `slope`. */
function setUp(options?: GradScalerOptions) {
  const parameter = weight();
  const optimizer = new SGD([parameter], { lr: 1 });
  const scaler = new GradScaler(options);
  const backward = (slope: number) => scaler.scale(parameter.mul(slope).sum()).backward();
  return { parameter, optimizer, scaler, backward };
}

describe('one step', () => {
  test('the gradient is scaled in backward and unscaled before the step', async () => {
    const { parameter, optimizer, scaler, backward } = setUp({ initScale: 1024 });
    await backward(0.25);
    expect(parameter.grad?.item()).toBe(256);
    expect(await scaler.step(optimizer)).toBe(true);
    expect(parameter.item()).toBe(0.75);
    expect(parameter.grad?.item()).toBe(0.25);
  });

  test('unscale comes before clipping, and step does not do it again', async () => {
    const { parameter, optimizer, scaler, backward } = setUp();
    await backward(4);
    await scaler.unscale(optimizer);
    expect(await optimizer.clipGradNorm(1)).toBe(4);
    await scaler.step(optimizer);
    expect(parameter.item()).toBeCloseTo(0, 5);
  });

  test.each([Infinity, -Infinity, NaN])('a gradient of %p skips it and halves the scale', async (slope) => {
    const { parameter, optimizer, scaler, backward } = setUp({ initScale: 8 });
    await backward(slope);
    expect(await scaler.step(optimizer)).toBe(false);
    await scaler.update();
    expect(parameter.item()).toBe(1);
    expect(optimizer.stateOf(parameter)).toBeUndefined();
    expect(scaler.getScale()).toBe(4);
  });

  test('a float16 gradient becomes a float32 one, in which what the scale has saved is not lost', async () => {
    const parameter = new Parameter(Tensor.from([1], [1], { dtype: 'float16' }));
    const optimizer = new SGD([parameter], { lr: 1 });
    const scaler = new GradScaler();
    const tiny = 2 ** -26; // below the smallest float16
    await scaler.scale(parameter.to('float32').mul(tiny).sum()).backward();
    await scaler.unscale(optimizer);
    expect(parameter.grad?.dtype).toBe('float32');
    expect(parameter.grad?.item()).toBe(tiny);
    await scaler.step(optimizer);
    expect(optimizer.stateOf(parameter)?.buffers['master']?.item()).toBe(Math.fround(1 - tiny));
  });

  test('the scale grows after growthInterval good steps', async () => {
    const { optimizer, scaler, backward } = setUp({ initScale: 2, growthInterval: 2, growthFactor: 4 });
    for (let step = 0; step < 4; step++) {
      await backward(1);
      await scaler.step(optimizer);
      await scaler.update();
      optimizer.zeroGrad();
    }
    expect(scaler.getScale()).toBe(32);
  });

  test('under the rule of DeepSpeed the first overflow is forgiven', async () => {
    const { optimizer, scaler, backward } = setUp({ rule: 'deepspeed', initScale: 2, minScale: 1 });
    const scales = [];
    for (let step = 0; step < 4; step++) {
      await backward(Infinity);
      expect(await scaler.step(optimizer)).toBe(false);
      await scaler.update();
      scales.push(scaler.getScale());
      optimizer.zeroGrad();
    }
    expect(scales).toEqual([2, 1, 1, 1]);
  });

  test('one that is not enabled scales nothing and makes every step', async () => {
    const { parameter, optimizer, scaler, backward } = setUp({ enabled: false });
    await backward(Infinity);
    await scaler.unscale(optimizer);
    expect(await scaler.step(optimizer)).toBe(true);
    await scaler.update();
    expect(parameter.item()).toBe(-Infinity);
    expect(scaler.getScale()).toBe(1);
  });

  test('update takes a scale by hand', async () => {
    const { scaler } = setUp();
    await scaler.update(12);
    expect(scaler.getScale()).toBe(12);
    await expect(scaler.update(0)).rejects.toThrow('update: newScale: expected a float32 number above 0, got 0');
    await expect(scaler.update(1e39)).rejects.toThrow('got 1e+39');
    expect(scaler.getScale()).toBe(12);
  });

  test('backward knows that its loss was scaled', async () => {
    const seen: (boolean | undefined)[] = [];
    const look = customFunction({
      forward: (x: Tensor) => x.mul(1),
      backward: (gradient) => {
        seen.push(BackwardSession.current()?.isLossScaled);
        return gradient;
      },
    });
    await new GradScaler().scale(look(weight()).sum()).backward();
    await look(weight()).sum().backward();
    expect(seen).toEqual([true, false]);
  });
});

describe('two optimizers under one scaler', () => {
  test('each steps unless its own gradients overflowed; the scale shrinks once', async () => {
    const [a, b] = [weight(), weight()];
    const [first, second] = [new SGD([a], { lr: 1 }), new SGD([b], { lr: 1 })];
    const scaler = new GradScaler({ initScale: 4 });
    await scaler.scale(a.add(b.mul(Infinity)).sum()).backward();
    expect([await scaler.step(first), await scaler.step(second)]).toEqual([true, false]);
    await scaler.update();
    expect([a.item(), b.item(), scaler.getScale()]).toEqual([0, 1, 2]);
  });
});

describe('calls out of order are refused', () => {
  test('unscale twice, unscale or step after step, update before any', async () => {
    const { parameter, optimizer, scaler, backward } = setUp({ initScale: 2 });
    await expect(scaler.update()).rejects.toThrow('update: no optimizer was unscaled or stepped');
    await backward(1);
    await scaler.unscale(optimizer);
    await expect(scaler.unscale(optimizer)).rejects.toThrow('were unscaled already');
    await scaler.step(optimizer);
    await expect(scaler.unscale(optimizer)).rejects.toThrow('unscale: this optimizer has stepped');
    await expect(scaler.step(optimizer)).rejects.toThrow('step: this optimizer has stepped already');
    expect([parameter.item(), parameter.grad?.item()]).toEqual([0, 1]);
    await scaler.update();
    await scaler.step(optimizer);
  });

  test('a call that was not awaited', async () => {
    const { optimizer, scaler, backward } = setUp();
    await backward(1);
    const step = scaler.step(optimizer);
    await expect(scaler.update()).rejects.toThrow('scaler.update(): the previous call was not awaited: scaler.step()');
    expect(() => scaler.scale(weight())).toThrow('scaler.scale(): the previous call was not awaited');
    expect(() => scaler.stateDict()).toThrow('not awaited');
    await step;
    await scaler.update();
  });

  test('a step that fails can be made again, without unscaling twice', async () => {
    const { parameter, optimizer, scaler, backward } = setUp();
    await backward(1);
    (optimizer.paramGroups[0] as { lr: number }).lr = NaN;
    await expect(scaler.step(optimizer)).rejects.toThrow('options.lr');
    (optimizer.paramGroups[0] as { lr: number }).lr = 1;
    expect(await scaler.step(optimizer)).toBe(true);
    expect(parameter.item()).toBe(0);
  });

  test('gradients that were not synchronised', async () => {
    await runWorld(2, async (world) => {
      const ddp = new DistributedDataParallel(new Linear(2, 2), world.group);
      const optimizer = new SGD(ddp.parameters());
      const scaler = new GradScaler({ group: world.group });
      const loss = (await ddp.forward(Tensor.ones([1, 2]))).sum();
      await ddp.noSync(() => scaler.scale(loss).backward());
      await expect(scaler.unscale(optimizer)).rejects.toThrow(
        "optimizer.unscaleGradients(): parameters 'weight', 'bias'",
      );
      await ddp.syncGradients();
      expect(await scaler.step(optimizer)).toBe(true);
    });
  });

  test.each([
    [{ growthFactor: 0.5 }, 'options.growthFactor'],
    [{ growthInterval: 0 }, 'options.growthInterval'],
    [{ scaleWindow: 5 }, "unknown key 'scaleWindow'"],
    [{ rule: 'deepspeed', growthFactor: 2 }, "unknown key 'growthFactor'"],
    [{ rule: 'deepspeed', initScale: 1, minScale: 2 }, 'initScale (1) is below minScale (2)'],
    [{ rule: 'apex' }, 'options.rule'],
    [{ initScale: 1e39 }, 'initScale: expected a float32'],
    [{ enabled: 1 }, 'options.enabled'],
    [{ group: {} }, 'expected a ProcessGroup'],
  ])('options %p', (options, message) => {
    expect(() => new GradScaler(options as never)).toThrow(message);
  });
});

describe('ranks decide together', () => {
  test('one rank alone that overflows: no rank steps, all shrink the scale', async () => {
    const results = await runWorld(3, async (world) => {
      const { parameter, optimizer, scaler, backward } = setUp({ group: world.group, initScale: 4 });
      await backward(world.rank === 1 ? Infinity : 1);
      const isStepped = await scaler.step(optimizer);
      await scaler.update();
      return [isStepped, parameter.item(), scaler.getScale()];
    });
    expect(results).toEqual(new Array(3).fill([false, 1, 2]));
  });

  test('under DDP the average carries an overflow to all ranks, without a group', async () => {
    const results = await runWorld(2, async (world) => {
      const ddp = new DistributedDataParallel(new Linear(1, 1), world.group);
      const optimizer = new AdamW(ddp.parameters());
      const scaler = new GradScaler();
      const output = (await ddp.forward(Tensor.ones([1, 1]))).mul(world.rank === 0 ? Infinity : 1);
      await scaler.scale(output.sum()).backward();
      await ddp.syncGradients();
      return scaler.step(optimizer);
    });
    expect(results).toEqual([false, false]);
  });
});

describe('a saved scaler', () => {
  test('resumes as one that never stopped', async () => {
    const options = { initScale: 4, growthInterval: 2 };
    const [whole, resumed] = [setUp(options), setUp(options)];
    const step = async ({ optimizer, scaler, backward }: typeof whole, slope: number) => {
      await backward(slope);
      await scaler.step(optimizer);
      await scaler.update();
      optimizer.zeroGrad();
    };
    await step(whole, Infinity);
    await step(whole, 1);
    resumed.scaler.loadStateDict(JSON.parse(JSON.stringify(whole.scaler.stateDict())) as never);
    for (const run of [whole, resumed]) await step(run, 1);
    expect(resumed.scaler.stateDict()).toEqual(whole.scaler.stateDict());
    expect(resumed.scaler.getScale()).toBe(4);
  });

  test('of another rule, or damaged, is refused', () => {
    const { scaler } = setUp();
    const state = scaler.stateDict();
    expect(() => new GradScaler({ rule: 'deepspeed' }).loadStateDict(state)).toThrow("of the rule 'torch'");
    expect(() => scaler.loadStateDict({ ...state, scale: -1 })).toThrow('options.scale');
    expect(scaler.stateDict()).toEqual(state);
  });
});
