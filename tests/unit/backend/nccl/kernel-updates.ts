/** Tests of the fused optimizer kernels, a part of kernels.test.ts. */
import type { DeviceElements } from '../../../../src/backend/nccl/kernel-launch';
import { updateKernel, type KernelUpdateTarget } from '../../../../src/backend/nccl/kernel-updates';
import { isHalfDType, type DType, type HostBuffer } from '../../../../src/core/dtype';
import { FLAT_UPDATE_TOLERANCE } from '../../../../src/core/flat-update';
import { Generator } from '../../../../src/core/generator';
import { Adam, AdamW } from '../../../../src/optim/adam';
import { takeOverChanges } from '../../../../src/optim/master-copy';
import { SGD } from '../../../../src/optim/sgd';
import { floatsOf } from '../../../../src/tensor/operators/floats';
import { Storage } from '../../../../src/tensor/storage';
import { Tensor } from '../../../../src/tensor/tensor';
import { storeValues } from '../../../helpers/fill';
import { expectSame, fromDevice, onDevice, type KernelRunner } from '../../../helpers/kernel-runner';

const STEPS = 3;
const FLOATS = ['float32', 'float16', 'bfloat16'] as const;
const PAIRS = FLOATS.flatMap((parameter) => FLOATS.map((gradient) => ({ parameter, gradient })));

type AnyOptimizer = SGD | Adam | AdamW;
const parameters = (): Tensor[] => [Tensor.zeros([1], { requiresGrad: true })];
const optimizers: Readonly<Record<string, AnyOptimizer>> = {
  'SGD with a penalty': new SGD(parameters(), { lr: 0.1, weightDecay: 0.01 }),
  'SGD with momentum and dampening': new SGD(parameters(), { lr: 0.1, momentum: 0.9, dampening: 0.3 }),
  'SGD with nesterov': new SGD(parameters(), { lr: 0.05, momentum: 0.8, nesterov: true, weightDecay: 0.1 }),
  Adam: new Adam(parameters(), { lr: 0.01 }),
  'Adam with a penalty': new Adam(parameters(), { lr: 0.01, betas: [0.8, 0.95], eps: 1e-6, weightDecay: 0.1 }),
  AdamW: new AdamW(parameters(), { lr: 1e-3, weightDecay: 0.1 }),
};

/** Up to 1e18: the square of what is larger leaves float32, in which the second average is kept. */
const SPECIAL = [0, -0, 1e-45, 1e-40, -1e-20, 1e18, -1e18, Infinity, -Infinity, NaN];
const SPECIAL_DISTANCE = 17;

function draw(dtype: DType, length: number, generator: Generator): HostBuffer {
  const values = Float64Array.from({ length }, (_unused, i) => {
    const isSpecial = i % SPECIAL_DISTANCE === 3 && generator.nextBelow(2) === 0;
    if (isSpecial) return SPECIAL[generator.nextBelow(SPECIAL.length)] as number;
    return generator.nextNormal() * 10 ** (generator.nextBelow(6) - 4);
  });
  return storeValues(dtype, values);
}

const floats = (buffer: HostBuffer): Float32Array => floatsOf(Storage.of(buffer)) as Float32Array;

/** float32 loses digits below 2^-126; this is what the step by an eps of 1e-8 makes of it. */
const SUBNORMAL = 2 ** -120;

/** A penalty that is close to the gradient, with the other sign, takes digits away that float32 does not have: a factor. */
function cancellation(gradient: Float32Array, values: Float32Array, penalty: number): Float32Array {
  return gradient.map((slope, i) => {
    const drawn = penalty * (values[i] as number);
    const lost = (Math.abs(slope) + Math.abs(drawn)) / Math.abs(slope + drawn);
    return Number.isNaN(lost) ? 1 : lost;
  });
}

interface Expected {
  readonly what: string;
  readonly elements: DeviceElements;
  readonly before: Float32Array;
  readonly expected: Float32Array;
  readonly lost: Float32Array;
}

function expectClose({ what, elements, before, expected, lost }: Expected): void {
  const got = fromDevice<Float32Array>(elements);
  for (let i = 0; i < expected.length; i++) {
    const [value, wanted, old] = [got[i] as number, expected[i] as number, before[i] as number];
    if (Object.is(value, wanted) || value === wanted) continue;
    const scale = Math.max(Math.abs(old), Math.abs(wanted), Math.abs(wanted - old));
    // A float32 is exact to 6e-8, so the stated tolerance bears the loss of a digit.
    const tolerance = FLAT_UPDATE_TOLERANCE * Math.max(1, (lost[i] as number) / 10);
    const isClose = Math.abs(value - wanted) <= tolerance * scale + SUBNORMAL;
    if (!isClose) expect({ what, i, old, value }).toEqual({ what, i, old, value: wanted });
  }
}

/** An optimizer and what it updates, in device memory. */
interface Run {
  readonly optimizer: AnyOptimizer;
  readonly target: KernelUpdateTarget;
}

/** What the optimizer's own loop makes of the contents of device memory now. */
function expectedOf({ optimizer, target }: Run, step: number, gradientScale: number): Expected[] {
  const settings = optimizer.settingsOf(0) as never;
  const parameter = Storage.of(fromDevice(target.parameter));
  const values = target.master === undefined ? floats(parameter.buffer) : fromDevice<Float32Array>(target.master);
  if (target.master !== undefined) takeOverChanges(values, parameter);
  const gradient = floats(fromDevice(target.gradient)).map((slope) => slope * gradientScale);
  const numbers = optimizer.flatUpdate(settings, step);
  const lost = cancellation(gradient, values, numbers.kind === 'adam' ? numbers.penalty : numbers.weightDecay);
  const pair = `${target.parameter.dtype} by ${target.gradient.dtype}`;

  const changed = { value: target.master ?? target.parameter, ...target.state };
  const all = Object.entries(changed).map(([name, elements]): Expected => {
    const before = name === 'value' ? values.slice() : fromDevice<Float32Array>(elements);
    return { what: `${name} of ${pair}, step ${step}`, elements, before, expected: before.slice(), lost };
  });
  const [value, ...state] = all as [Expected, ...Expected[]];
  const buffers = Object.keys(target.state).map((name, i) => [name, (state[i] as Expected).expected] as const);
  optimizer.update({ parameter: value.expected, gradient, state: Object.fromEntries(buffers), step }, settings);
  return all;
}

/** One step of all, in device memory, compared with the optimizers' loops. */
function checkStep(runner: KernelRunner, runs: readonly Run[], step: number, gradientScale = 1): void {
  const expected = runs.flatMap((run) => expectedOf(run, step, gradientScale));
  runner.run(
    ...runs.map(({ optimizer, target }) => {
      return updateKernel({ ...optimizer.flatUpdate(optimizer.settingsOf(0) as never, step), gradientScale }, target);
    }),
  );
  expected.forEach(expectClose);
  for (const { target } of runs) {
    if (target.master === undefined) continue;
    const rounded = storeValues(target.parameter.dtype, fromDevice<Float32Array>(target.master));
    expectSame(floats(fromDevice(target.parameter)), floats(rounded));
  }
}

interface Drawn {
  readonly parameter: DType;
  readonly gradient: DType;
  readonly length: number;
}

function makeTarget(optimizer: AnyOptimizer, drawn: Drawn, generator: Generator): KernelUpdateTarget {
  const parameter = draw(drawn.parameter, drawn.length, generator);
  const names = optimizer.stateNames(optimizer.settingsOf(0) as never);
  return {
    parameter: onDevice(parameter),
    gradient: onDevice(draw(drawn.gradient, drawn.length, generator)),
    master: isHalfDType(drawn.parameter) ? onDevice(floats(parameter)) : undefined,
    state: Object.fromEntries(names.map((name) => [name, onDevice(new Float32Array(drawn.length))])),
  };
}

export function checkUpdates(runner: KernelRunner): void {
  describe.each(Object.entries(optimizers))('%s', (_name, optimizer) => {
    test('does what the loop does, to the stated tolerance, on parameters and gradients of all dtypes', () => {
      const generator = new Generator(11);
      let targets = PAIRS.map((pair) => makeTarget(optimizer, { ...pair, length: 257 }, generator));
      for (let step = 1; step <= STEPS; step++) {
        const runs = targets.map((target) => ({ optimizer, target }));
        checkStep(runner, runs, step, step === 2 ? 0.25 : 1);
        targets = targets.map((target) => {
          return { ...target, gradient: onDevice(draw(target.gradient.dtype, 257, generator)) };
        });
      }
    });

    test('does so for any number of elements', () => {
      const runs = [0, 1, 31, 10_007].map((length) => {
        const drawn = { parameter: 'bfloat16', gradient: 'float32', length } as const;
        return { optimizer, target: makeTarget(optimizer, drawn, new Generator(12)) };
      });
      checkStep(runner, runs, 1);
    });

    test('does nothing where the skip flag is set, and all where it is not', () => {
      const numbers = optimizer.flatUpdate(optimizer.settingsOf(0) as never, 1);
      const drawn = { parameter: 'float16', gradient: 'float32', length: 31 } as const;
      const make = (): KernelUpdateTarget => makeTarget(optimizer, drawn, new Generator(13));
      const [skipped, taken, plain] = [make(), make(), make()];
      runner.run(
        updateKernel(numbers, { ...skipped, skip: onDevice(Int32Array.of(1)) }),
        updateKernel(numbers, { ...taken, skip: onDevice(Int32Array.of(0)) }),
        updateKernel(numbers, plain),
      );
      expect(skipped).toEqual(make());
      expect(taken).toEqual(plain);
      expect(taken).not.toEqual(make());
    });
  });

  test('a 16-bit parameter without a master is rounded at every step', () => {
    const optimizer = optimizers['SGD with a penalty'] as SGD;
    const parameter = onDevice(storeValues('bfloat16', [1, 2]));
    const gradient = onDevice(Float32Array.of(0.001, 10));
    runner.run(updateKernel(optimizer.flatUpdate(optimizer.settingsOf(0), 1), { parameter, gradient, state: {} }));
    expect(fromDevice(parameter)).toEqual(storeValues('bfloat16', [1 - 0.1 * 0.011, 2 - 0.1 * 10.02]));
  });

  test('elements of a parameter that were changed start their master anew, and only they', () => {
    const optimizer = optimizers['SGD with momentum and dampening'] as SGD;
    const target = {
      parameter: onDevice(storeValues('float16', [5, 1])),
      gradient: onDevice(Float32Array.of(0, 0)),
      master: onDevice(Float32Array.of(1.0001, 1.0001)),
      state: { momentumBuffer: onDevice(new Float32Array(2)) },
    };
    runner.run(updateKernel(optimizer.flatUpdate(optimizer.settingsOf(0), 2), target));
    expect(fromDevice(target.master)).toEqual(Float32Array.of(5, 1.0001));
    expect(fromDevice(target.parameter)).toEqual(storeValues('float16', [5, 1]));
  });

  test('a decay that float32 cannot tell from none in one number is taken from the parameter', () => {
    const optimizer = new AdamW(parameters(), { lr: 1e-5, weightDecay: 1e-3, eps: 1 });
    const lengths = { parameter: onDevice(Float32Array.of(0)), gradient: onDevice(Float32Array.of(0)) };
    const state = { expAvg: onDevice(Float32Array.of(0)), expAvgSq: onDevice(Float32Array.of(0)) };
    const launch = updateKernel(optimizer.flatUpdate(optimizer.settingsOf(0), 1), { ...lengths, state });
    const decay = launch.args[14] as { readonly float32: number };
    expect(Math.abs(decay.float32 - 1e-8)).toBeLessThan(1e-15);
    expect(1 - Math.fround(1 - 1e-8)).toBe(0);
  });
}
