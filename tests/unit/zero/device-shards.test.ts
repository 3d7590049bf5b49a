/** Shards in device memory: what is where and when, and what is refused. */
import type { FlatUpdate } from '../../../src/core/flat-update';
import { isLockstepError } from '../../../src/core/errors';
import { memory } from '../../../src/core/memory-account';
import { AdamW, type AdamSettings } from '../../../src/optim/adam';
import { Optimizer } from '../../../src/optim/optimizer';
import { SGD } from '../../../src/optim/sgd';
import type { UpdateTarget } from '../../../src/optim/update-rule';
import { World } from '../../../src/process-group/world';
import { runWorld } from '../../../src/testing/index';
import { withFullParameters } from '../../../src/zero/full-parameters';
import type { ZeroOptions, ZeroPrecision, ZeroStage } from '../../../src/zero/zero-options';
import { zeroWrap } from '../../../src/zero/zero';
import { Mlp, batchOf, lossOf, runPortable } from '../ddp/models';
import { HostDevice, runOnDevices, withDevice } from '../../helpers/host-device';
import { adamW, train, wrap } from './device-training';
import { bitsOf } from './training';

const STAGES: readonly ZeroStage[] = [0, 1, 2, 3];
/** Of an Mlp. */
const NUM_ELEMENTS = 6 * 8 + 8 + 8 * 3 + 3;
const cuda = { shardDevice: 'cuda' } as const;

/** AdamW that a subclass changes. */
class Halved extends AdamW {
  override update(target: UpdateTarget, settings: AdamSettings): void {
    super.update(target, { ...settings, lr: settings.lr / 2 });
  }
}

/** And says so. */
class HalvedEverywhere extends Halved {
  override flatUpdate(settings: AdamSettings, step: number) {
    return super.flatUpdate({ ...settings, lr: settings.lr / 2 }, step);
  }
}

/** An optimizer of somebody's, with or without numbers for kernels. */
class Plain extends Optimizer {
  override readonly isElementwise = true;

  constructor(model: Mlp) {
    super(model.parameters(), { lr: 1 }, (given) => given as { lr: number });
  }

  override stateNames(): string[] {
    return [];
  }

  override update({ parameter, gradient }: UpdateTarget, { lr }: { lr: number }): void {
    for (let i = 0; i < parameter.length; i++) parameter[i] = (parameter[i] as number) - lr * (gradient[i] as number);
  }
}

class Choosy extends Plain {
  override flatUpdate({ lr }: { lr: number }): FlatUpdate | undefined {
    if (lr > 1) return undefined;
    return { kind: 'sgd', lr, momentum: 0, taken: 1, weightDecay: 0, nesterov: false, gradientScale: 1 };
  }
}

describe('zeroWrap refuses, as unsupported and saying what to do,', () => {
  async function refusalOf(optimizerFor: (model: Mlp) => Optimizer, model = new Mlp()): Promise<string> {
    const [message] = await runOnDevices(1, ({ group }) =>
      zeroWrap(model, optimizerFor, group, cuda).then(
        () => 'accepted',
        (error: Error) => `${isLockstepError(error, 'LOCKSTEP_UNSUPPORTED')}: ${error.message}`,
      ),
    );
    return message as string;
  }

  test('a backend without a device', async () => {
    await runPortable(2, async ({ group }) => {
      const wrapped = zeroWrap(new Mlp(), adamW, group, cuda);
      await expect(wrapped).rejects.toThrow(/shardDevice 'cuda': the backend 'mock' has no device.*'nccl'.*'cpu'/);
      await expect(zeroWrap(new Mlp(), adamW, group)).resolves.toBeDefined();
    });
  });

  test('an optimizer that does not say its update in numbers, or not for these settings', async () => {
    expect(await refusalOf((model) => new Plain(model))).toMatch(/^true: .*Plain does not say its update.*AdamW/);
    expect(await refusalOf((model) => new Choosy(model))).toBe('accepted');
    const changed = await refusalOf((model) => {
      const optimizer = new Choosy(model);
      (optimizer.paramGroups[0] as { lr: number }).lr = 2;
      return optimizer;
    });
    expect(changed).toMatch(/^true: .*flatUpdate of Choosy gives undefined for the settings of paramGroups\[0\]/);
  });

  test('a subclass that changes the update and inherits the numbers', async () => {
    expect(await refusalOf((model) => new Halved(model.parameters()))).toMatch(
      /^true: .*Halved has an update of its own and inherits flatUpdate/,
    );
    expect(await refusalOf((model) => new HalvedEverywhere(model.parameters()))).toBe('accepted');
  });

  test('parameters of float64', async () => {
    const model = new Mlp();
    model.fc2.to('float64');
    expect(await refusalOf(adamW, model)).toMatch(/^true: .*'fc2\.weight' is float64.*\.to\('float32'\)/);
    for (const parameter of model.fc2.parameters()) parameter.requiresGrad = false;
    const trainable = (mlp: Mlp): AdamW => new AdamW(mlp.fc1.parameters());
    expect(await refusalOf(trainable, model)).toBe('accepted');
  });

  test('on all ranks what one of them refuses, or has otherwise', async () => {
    await runOnDevices(2, async ({ group, rank }) => {
      const options: ZeroOptions = rank === 0 ? cuda : {};
      await expect(zeroWrap(new Mlp(), adamW, group, options)).rejects.toThrow(
        /option shardDevice is cpu on rank 1, and cuda on rank 0/,
      );
      const other = zeroWrap(new Mlp(), adamW, group, { shardDevice: 'gpu' as never });
      await expect(other).rejects.toThrow(/options.shardDevice: expected 'cpu' or 'cuda', got 'gpu'/);
    });
    await runWorld(2, async (world, backend) => {
      const here = world.rank === 1 ? world : World.fromBackend(withDevice(backend, new HostDevice()));
      const wrapped = zeroWrap(new Mlp(), adamW, here.group, cuda);
      await expect(wrapped).rejects.toThrow(world.rank === 1 ? /no device/ : /rank 1 refused: .*no device/);
    });
  });
});

describe.each(STAGES)('stage %i', (stage) => {
  /** Elements of a rank's part, without padding. */
  const ownElements = (world: World): number => {
    if (stage === 0) return NUM_ELEMENTS;
    const part = Math.ceil(NUM_ELEMENTS / world.worldSize);
    return Math.min(part, NUM_ELEMENTS - part * world.rank);
  };
  const options: ZeroOptions = { stage, mergeThreshold: 1000, ...cuda };

  test('a step uploads the gradient, and downloads the parameter; all else stays where it is', async () => {
    await runOnDevices(2, async (world, device) => {
      const wrapped = await wrap(world, options);
      expect([device.bytesInUse, wrapped.optimizer.deviceBytes]).toEqual([0, 0]);
      await train(wrapped, [1]);
      const own = ownElements(world);
      expect([device.bytesInUse, wrapped.optimizer.deviceBytes]).toEqual([12 * own, 12 * own]);
      expect([device.bytesUploaded, device.bytesDownloaded]).toEqual([16 * own, 4 * own]);
      await train(wrapped, [2, 3]);
      expect([device.bytesUploaded, device.bytesDownloaded]).toEqual([24 * own, 12 * own]);
      expect(device.bytesInUse).toBe(12 * own);
    });
  });

  test('in 16 bits: gradients and parameters travel in them, and masters stay on the device', async () => {
    await runOnDevices(2, async (world, device) => {
      const wrapped = await wrap(world, { ...options, precision: 'bfloat16' });
      await train(wrapped, [1, 2, 3]);
      const own = ownElements(world);
      expect(device.bytesInUse).toBe((2 + 3 * 4) * own);
      expect([device.bytesUploaded, device.bytesDownloaded]).toEqual([(14 + 3 * 2) * own, 3 * 2 * own]);
    });
  });

  test('host memory holds a copy of the own part, and no optimizer state', async () => {
    await runOnDevices(2, async (world) => {
      for (const precision of ['float32', 'bfloat16'] as const) {
        const before = memory.stats().live.optimizer;
        const wrapped = await wrap(world, { ...options, precision });
        await train(wrapped, [1]);
        expect(memory.stats().live.optimizer - before).toBe((precision === 'float32' ? 4 : 2) * ownElements(world));
        await wrapped.module.detach();
      }
    });
  });

  test.each<ZeroPrecision>(['float32', 'bfloat16'])(
    'in %s: detach() leaves nothing on the device, and the state can still be had',
    async (precision) => {
      await runOnDevices(2, async (world, device) => {
        const wrapped = await wrap(world, { ...options, precision });
        await train(wrapped, [1, 2]);
        const before = await wrapped.snapshot();
        const { optimizer } = memory.stats().live;
        await wrapped.module.detach();
        expect([device.bytesInUse, wrapped.optimizer.deviceBytes]).toEqual([0, 0]);
        // two averages, and a master, for the copy of the part
        const bytes = precision === 'float32' ? 8 - 4 : 12 - 2;
        expect(memory.stats().live.optimizer - optimizer).toBe(bytes * ownElements(world));
        expect(await wrapped.snapshot()).toEqual(before);
        await expect(wrapped.optimizer.step()).rejects.toThrow(/detach/);
      });
    },
  );

  test('without enough device memory a step is refused, and nothing has changed; with more it is made', async () => {
    const [expected] = await runOnDevices(2, async (world) => {
      const wrapped = await wrap(world, options);
      await train(wrapped, [1]);
      return wrapped.snapshot();
    });
    await runOnDevices(2, async (world, device) => {
      const wrapped = await wrap(world, options);
      const before = await wrapped.snapshot();
      await (await lossOf(wrapped.module, batchOf(1, 4))).backward();
      const whole = 16 * ownElements(world);
      for (const capacity of [0, 20, whole / 2, whole - 4]) {
        device.capacity = capacity;
        await expect(wrapped.optimizer.step()).rejects.toThrow(/no memory left for \d+ bytes/);
        expect(device.bytesInUse).toBe(wrapped.optimizer.deviceBytes); // no gradient is left there
      }
      expect(await wrapped.snapshot()).toEqual(before);
      device.capacity = whole;
      await wrapped.optimizer.step();
      expect(await wrapped.snapshot()).toEqual(expected);
    });
  });

  test('a change that is taken back, after a step that there was no memory for, is as none', async () => {
    const program = async (world: World, device: HostDevice, isRefused: boolean) => {
      const wrapped = await wrap(world, options);
      const { weight } = wrapped.module.module.fc1;
      await train(wrapped, [1]);
      const old = await withFullParameters(wrapped.module, () => weight.data.slice());
      const set = (values: Float32Array): Promise<void> =>
        withFullParameters(wrapped.module, () => (weight.data as Float32Array).set(values));
      await (await lossOf(wrapped.module, batchOf(2, 4))).backward();
      if (isRefused) {
        await set(new Float32Array(old.length));
        device.capacity = device.bytesInUse;
        await expect(wrapped.optimizer.step()).rejects.toThrow(/no memory left/);
        device.capacity = Infinity;
        await set(old as Float32Array);
      }
      await wrapped.optimizer.step();
      return wrapped.snapshot();
    };
    const expected = await runOnDevices(2, (world, device) => program(world, device, false));
    expect(await runOnDevices(2, (world, device) => program(world, device, true))).toEqual(expected);
  });

  test('a device that fails in a step leaves the parameters as they were', async () => {
    await runOnDevices(2, async (world, device) => {
      const wrapped = await wrap(world, options);
      await train(wrapped, [1]);
      const { bits } = await wrapped.snapshot();
      await (await lossOf(wrapped.module, batchOf(2, 4))).backward();
      device.break('CUDA error 700');
      await expect(wrapped.optimizer.step()).rejects.toThrow(/CUDA error 700/);
      expect(await withFullParameters(wrapped.module, () => bitsOf(wrapped.module.parameters()))).toEqual(bits);
      await expect(wrapped.optimizer.stateDict()).rejects.toThrow(/CUDA error 700/);
    });
  });

  test('an update that is refused at once ends no sooner than the uploads before it', async () => {
    await runOnDevices(2, async (world, device) => {
      const wrapped = await wrap(world, options);
      await train(wrapped, [1]);
      await (await lossOf(wrapped.module, batchOf(2, 4))).backward();
      jest.spyOn(device, 'update').mockImplementation(() => {
        throw new Error('no such kernel');
      });
      await expect(wrapped.optimizer.step()).rejects.toThrow('no such kernel');
      expect(device.bytesInUse).toBe(wrapped.optimizer.deviceBytes); // memory of a call in flight would be in use
    });
  });

  test('a parameter that a program has changed goes up once, alone', async () => {
    await runOnDevices(2, async (world, device) => {
      const wrapped = await wrap(world, options);
      await train(wrapped, [1]);
      const before = device.bytesUploaded;
      await withFullParameters(wrapped.module, () => wrapped.module.module.fc1.weight.data.fill(0.5 as never));
      await train(wrapped, [2, 3]);
      const changed = stage === 0 ? 48 : expect.any(Number);
      const extra = device.bytesUploaded - before - 2 * 4 * ownElements(world);
      expect(extra / 4).toEqual(changed);
      const total = (await world.group.allGatherObjects(extra / 4)).reduce((sum, count) => sum + count, 0);
      expect(total).toBe(stage === 0 ? 96 : 48);
    });
  });
});

test.each([1, 3] as const)('stage %i: settings that need another buffer, from one step to the next', async (stage) => {
  const program = async (world: World, options: ZeroOptions) => {
    const sgd = (model: Mlp): SGD => new SGD(model.parameters(), { lr: 0.1 });
    const wrapped = await wrap(world, { stage, ...options }, 1, sgd);
    const [group] = wrapped.optimizer.paramGroups as unknown as [{ momentum: number; weightDecay: number }];
    await train(wrapped, [1, 2]);
    group.momentum = 0.9;
    await train(wrapped, [3, 4]);
    group.momentum = 0;
    group.weightDecay = 0.1;
    await train(wrapped, [5]);
    return wrapped.snapshot();
  };
  const expected = await runPortable(2, (world) => program(world, {}));
  const ranks = await runOnDevices(2, (world) => program(world, cuda), { arithmetic: 'float64' });
  expect(ranks.map(({ bits }) => bits)).toEqual(expected.map(({ bits }) => bits));
});

test('settings that no kernel knows are refused by the step, which changes nothing', async () => {
  await runOnDevices(2, async (world, device) => {
    const wrapped = await wrap(world, cuda, 1, (model) => new Choosy(model));
    await train(wrapped, [1]);
    const before = await wrapped.snapshot();
    await (await lossOf(wrapped.module, batchOf(2, 4))).backward();
    const [group] = wrapped.optimizer.paramGroups as unknown as [{ lr: number }];
    group.lr = 2;
    const { numUpdates } = device;
    await expect(wrapped.optimizer.step()).rejects.toThrow(/flatUpdate of Choosy gives undefined.*shardDevice 'cpu'/);
    group.lr = 1;
    expect([await wrapped.snapshot(), device.numUpdates]).toEqual([before, numUpdates]);
  });
});
