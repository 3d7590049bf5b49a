/** The numbers that optimizers give to kernels are those of their own loops. */
import { FLAT_UPDATE_TOLERANCE } from '../../../src/core/flat-update';
import { Generator } from '../../../src/core/generator';
import { Adam, AdamW } from '../../../src/optim/adam';

import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';
import { runFlatUpdate, type Arithmetic } from '../../helpers/flat-update-loops';

const SIZE = 500;
const STEPS = 6;

type AnyOptimizer = SGD | Adam | AdamW;
const parameters = (): Tensor[] => [Tensor.zeros([1], { requiresGrad: true })];

const optimizers: Readonly<Record<string, () => AnyOptimizer>> = {
  SGD: () => new SGD(parameters(), { lr: 0.1, weightDecay: 0.01 }),
  'SGD with momentum and dampening': () => new SGD(parameters(), { lr: 0.1, momentum: 0.9, dampening: 0.3 }),
  'SGD with nesterov': () => new SGD(parameters(), { lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.1 }),
  Adam: () => new Adam(parameters(), { lr: 0.01 }),
  'Adam with a penalty': () => new Adam(parameters(), { lr: 0.01, betas: [0.8, 0.95], eps: 1e-6, weightDecay: 0.1 }),
  AdamW: () => new AdamW(parameters(), { lr: 1e-3 }),
  'AdamW without averages': () => new AdamW(parameters(), { lr: 1e-3, betas: [0, 0], weightDecay: 0.5 }),
};

interface Run {
  readonly parameter: Float32Array;
  readonly state: Readonly<Record<string, Float32Array>>;
}

/** Numbers of many sizes; zeros among them. */
function draw(generator: Generator): Float32Array {
  return Float32Array.from({ length: SIZE }, (_unused, i) =>
    i % 50 === 0 ? 0 : generator.nextNormal() * 10 ** (generator.nextBelow(9) - 6),
  );
}

/** Both start every step from the same values. @returns what each has come to */
function* steps(optimizer: AnyOptimizer, arithmetic: Arithmetic): Steps {
  const settings = optimizer.settingsOf(0) as never;
  const generator = new Generator(7);
  const names = optimizer.stateNames(settings);
  const own: Run = {
    parameter: draw(generator),
    state: Object.fromEntries(names.map((name) => [name, new Float32Array(SIZE)])),
  };
  for (let step = 1; step <= STEPS; step++) {
    const before = own.parameter.slice();
    const fused: Run = {
      parameter: own.parameter.slice(),
      state: Object.fromEntries(Object.entries(own.state).map(([name, buffer]) => [name, buffer.slice()])),
    };
    const gradient = draw(generator);
    const update = optimizer.flatUpdate?.(settings, step);
    if (update === undefined) throw new Error('expected a flat update');
    optimizer.update({ ...own, gradient, step }, settings);
    runFlatUpdate(update, { ...fused, gradient }, arithmetic);
    yield { before, own, fused };
  }
}
type Steps = globalThis.Generator<{ readonly before: Float32Array; readonly own: Run; readonly fused: Run }>;

describe.each(Object.entries(optimizers))('%s', (_name, make) => {
  test('the numbers, put into the formulas in float64, give the bits of the loop', () => {
    for (const { own, fused } of steps(make(), 'float64')) expect(fused).toEqual(own);
  });

  test('in float32 they agree to the stated tolerance, step by step', () => {
    for (const { before, own, fused } of steps(make(), 'float32')) {
      let isSame = true;
      for (const [i, expected] of own.parameter.entries()) {
        const old = before[i] as number;
        const scale = Math.max(Math.abs(old), Math.abs(expected), Math.abs(expected - old));
        const difference = Math.abs((fused.parameter[i] as number) - expected);
        expect({ i, difference, isClose: difference <= FLAT_UPDATE_TOLERANCE * scale }).toMatchObject({
          isClose: true,
        });
        isSame &&= difference === 0;
      }
      expect(isSame).toBe(false); // or nothing was compared
    }
  });
});
