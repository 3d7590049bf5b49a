/** Optimizers, clipping and schedulers against the golden vectors, which torch computed in float64. */
import { Adam, AdamW, type AdamOptions } from '../../src/optim/adam';
import { clipGradNorm } from '../../src/optim/clip-grad-norm';
import { CosineAnnealingLR } from '../../src/optim/cosine-annealing-lr';
import { CosineWithWarmup } from '../../src/optim/cosine-with-warmup';
import type { Optimizer } from '../../src/optim/optimizer';
import type { Scheduler } from '../../src/optim/scheduler';
import { SGD, type SGDOptions } from '../../src/optim/sgd';
import { StepLR } from '../../src/optim/step-lr';
import { Parameter } from '../../src/nn/parameter';
import { Tensor } from '../../src/tensor/tensor';
import { readGolden } from '../helpers/golden';

type JsonNumber = number | string;
type ByName<T> = Readonly<Record<string, T>>;

interface ShapedData {
  readonly shape: readonly number[];
  readonly data: readonly JsonNumber[];
}

interface Trajectory {
  readonly name: string;
  readonly optimizer: 'SGD' | 'Adam' | 'AdamW';
  readonly groups: readonly { readonly options: SGDOptions & AdamOptions; readonly params: readonly string[] }[];
  readonly params: ByName<ShapedData>;
  readonly grads: readonly ByName<readonly JsonNumber[] | null>[];
  readonly expected: readonly ByName<readonly JsonNumber[]>[];
  readonly finalState: ByName<ByName<number | readonly JsonNumber[]>>;
}

interface ClipCase {
  readonly name: string;
  readonly maxNorm: number;
  readonly normType: JsonNumber;
  readonly grads: readonly ShapedData[];
  readonly totalNorm: JsonNumber;
  readonly expected: readonly (readonly JsonNumber[])[];
}

interface Schedule {
  readonly name: string;
  readonly kind: 'StepLR' | 'CosineWithWarmup' | 'CosineAnnealingLR';
  readonly attrs: never;
  readonly baseLrs: readonly number[];
  readonly lrs: readonly (readonly number[])[];
}

interface OptimFile {
  readonly trajectories: readonly Trajectory[];
  readonly clipGradNorm: readonly ClipCase[];
  readonly schedulers: readonly Schedule[];
}

const golden = readGolden<OptimFile>('optim.json');

const named = <T extends { readonly name: string }>(cases: readonly T[]) => cases.map((c) => [c.name, c] as const);

const tensorOf = (data: readonly JsonNumber[], shape: readonly number[]) => Tensor.from(data.map(Number), shape);

/** got and want agree within rtol 1e-5 and atol 2e-6, the suggestion of the vectors' README. */
function expectClose(got: ArrayLike<number | bigint>, want: readonly JsonNumber[], rtol = 1e-5, atol = 2e-6): void {
  expect(got).toHaveLength(want.length);
  const wrong = want.flatMap((value, i) => {
    const [actual, expected] = [Number(got[i]), Number(value)];
    const isSame = Object.is(actual, expected) || Math.abs(actual - expected) <= atol + rtol * Math.abs(expected);
    return isSame ? [] : [{ i, actual, expected }];
  });
  expect(wrong).toEqual([]);
}

const at = <T>(record: ByName<T>, key: string): T => {
  const value = record[key];
  if (value === undefined) throw new Error(`no ${key}`);
  return value;
};

const OPTIMIZERS = { SGD, Adam, AdamW };

const makeSchedulers: ByName<(optimizer: Optimizer, attrs: never) => Scheduler> = {
  StepLR: (optimizer, attrs) => new StepLR(optimizer, attrs),
  CosineWithWarmup: (optimizer, attrs) => new CosineWithWarmup(optimizer, attrs),
  CosineAnnealingLR: (optimizer, attrs) => new CosineAnnealingLR(optimizer, attrs),
};

describe('optimizers follow torch', () => {
  test.each(named(golden.trajectories))('%s', async (_name, run) => {
    const params = Object.fromEntries(
      Object.entries(run.params).map(([name, { data, shape }]) => [name, new Parameter(tensorOf(data, shape))]),
    );
    const groups = run.groups.map(({ options, params: names }) => ({
      params: names.map((name) => at(params, name)),
      ...options,
    }));
    const optimizer = new OPTIMIZERS[run.optimizer](groups);
    for (const [step, grads] of run.grads.entries()) {
      for (const [name, grad] of Object.entries(grads)) {
        at(params, name).grad = grad === null ? undefined : tensorOf(grad, at(params, name).shape);
      }
      await optimizer.step();
      for (const [name, want] of Object.entries(run.expected[step] ?? {})) expectClose(at(params, name).data, want);
    }
    for (const [name, want] of Object.entries(run.finalState)) {
      const state = optimizer.stateOf(at(params, name));
      for (const [key, value] of Object.entries(want)) {
        if (typeof value === 'number') expect(state?.step).toBe(value);
        else expectClose(at(state?.buffers ?? {}, key).data, value);
      }
    }
  });
});

describe('clipGradNorm follows torch', () => {
  test.each(named(golden.clipGradNorm))('%s', async (_name, clip) => {
    const parameters = clip.grads.map(({ data, shape }) => {
      const parameter = new Parameter(Tensor.zeros(shape));
      parameter.grad = tensorOf(data, shape);
      return parameter;
    });
    const norm = await clipGradNorm(parameters, clip.maxNorm, { normType: Number(clip.normType) });
    expectClose([norm], [clip.totalNorm], 1e-6, 0);
    parameters.forEach((parameter, i) => expectClose(parameter.grad?.data ?? [], clip.expected[i] ?? []));
  });
});

describe('schedulers follow torch', () => {
  test.each(named(golden.schedulers))('%s', (_name, { kind, attrs, baseLrs, lrs }) => {
    const groups = baseLrs.map((lr) => ({ params: [new Parameter(Tensor.zeros([1]))], lr }));
    const optimizer = new SGD(groups);
    const scheduler = at(makeSchedulers, kind)(optimizer, attrs);
    for (const expected of lrs) {
      expectClose(
        optimizer.paramGroups.map((group) => group.lr),
        expected,
        1e-12,
        1e-18, // cos(pi) is not exactly -1 in the last place
      );
      scheduler.step();
    }
  });
});
