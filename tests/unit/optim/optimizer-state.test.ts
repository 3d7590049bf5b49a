import { memory } from '../../../src/core/memory-account';
import { Parameter } from '../../../src/nn/parameter';
import { Adam, AdamW } from '../../../src/optim/adam';
import type { OptimizerState } from '../../../src/optim/optimizer-state';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';

const SHAPES = [[2, 3], [4], []] as const;

function makeParameters() {
  return SHAPES.map((shape) => new Parameter(Tensor.ones(shape)));
}

/** Gradients that depend on the step, none for the second parameter in step 1. */
async function train(optimizer: SGD | Adam, from: number, to: number): Promise<void> {
  for (let step = from; step < to; step++) {
    optimizer.parameters.forEach((parameter, i) => {
      const values = Float32Array.from({ length: parameter.size }, (_, j) => Math.sin(step * 31 + i * 7 + j));
      parameter.grad = i === 1 && step === 1 ? undefined : Tensor.from(values, parameter.shape);
    });
    await optimizer.step();
  }
}

const valuesOf = (parameters: readonly Tensor[]) => parameters.map(({ data }) => Array.from(data, Number));

describe('a saved optimizer', () => {
  test.each([
    ['SGD', (params: Parameter[]) => new SGD(params, { lr: 0.1, momentum: 0.9, dampening: 0.2 })],
    ['Adam', (params: Parameter[]) => new Adam(params, { lr: 0.1 })],
    [
      'AdamW with groups',
      ([first, ...others]: Parameter[]) => new AdamW([{ params: [first as Parameter], lr: 0.2 }, { params: others }]),
    ],
  ])('%s resumes with the same bits as one that never stopped', async (_name, make) => {
    const whole = makeParameters();
    const optimizer = make(whole);
    await train(optimizer, 0, 3);
    const state = optimizer.stateDict();
    const saved = whole.map((parameter) => parameter.detach().clone());
    await train(optimizer, 3, 6);

    const resumed = saved.map((tensor) => new Parameter(tensor));
    const other = make(resumed);
    other.loadStateDict(state);
    await train(other, 3, 6);
    expect(valuesOf(resumed)).toEqual(valuesOf(whole));
  });

  test('has the form of PyTorch: state by index, groups with settings and indices', async () => {
    const [a, b, c] = makeParameters() as [Parameter, Parameter, Parameter];
    const optimizer = new SGD([{ params: [a] }, { params: [b, c], lr: 0.5 }], { lr: 0.1, momentum: 0.9 });
    c.grad = Tensor.from(2, []);
    await optimizer.step();
    const settings = { momentum: 0.9, dampening: 0, weightDecay: 0, nesterov: false };
    expect(optimizer.stateDict()).toEqual({
      state: { 2: { step: 1, momentumBuffer: Tensor.from(2, []) } },
      paramGroups: [
        { params: [0], lr: 0.1, ...settings },
        { params: [1, 2], lr: 0.5, ...settings },
      ],
    });
  });

  test('is a copy: later steps do not change it, and loading it does not tie the two', async () => {
    const optimizer = new Adam(makeParameters());
    await train(optimizer, 0, 1);
    const state = optimizer.stateDict();
    const text = JSON.stringify(state);
    const other = new Adam(makeParameters());
    other.loadStateDict(state);
    await train(optimizer, 1, 2);
    await train(other, 1, 2);
    expect(JSON.stringify(state)).toBe(text);
  });

  test('replaces the state that was there, in the account too', async () => {
    const optimizer = new Adam(makeParameters());
    await train(optimizer, 0, 1);
    const { optimizer: before } = memory.stats().live;
    optimizer.loadStateDict(optimizer.stateDict());
    expect(memory.stats().live.optimizer).toBe(before);
  });

  test('brings its settings along', () => {
    const optimizer = new AdamW(makeParameters(), { lr: 0.5, betas: [0.5, 0.6] });
    const other = new AdamW(makeParameters());
    other.loadStateDict(optimizer.stateDict());
    expect(other.paramGroups[0]).toMatchObject({ lr: 0.5, betas: [0.5, 0.6] });
    expect(other.paramGroups[0]?.params).toBe(other.paramGroups[0]?.params);
    expect(other.parameters[0]).not.toBe(optimizer.parameters[0]);
  });
});

describe('a state that does not fit is refused, and changes nothing', () => {
  async function setUp() {
    const optimizer = new Adam(makeParameters());
    await train(optimizer, 0, 2);
    return optimizer;
  }

  type Edit = (state: OptimizerState) => unknown;
  const edit =
    (change: Partial<OptimizerState>): Edit =>
    (state) => ({ ...state, ...change });
  const editFirst =
    (change: object): Edit =>
    (state) => ({
      ...state,
      state: { ...state.state, 0: { ...state.state[0], ...change } },
    });

  test.each<[string, Edit, string]>([
    ['nothing', () => undefined, 'Adam.loadStateDict: expected what stateDict() gave, { state, paramGroups }'],
    ['no groups', edit({ paramGroups: 3 as never }), 'expected what stateDict() gave'],
    [
      'other groups',
      (state) => ({ ...state, paramGroups: [{ ...state.paramGroups[0], params: [0, 1] }] }),
      'the state has 1 groups of 2 parameters, this optimizer has 1 groups of 3 parameters',
    ],
    [
      'a setting that does not parse',
      (state) => ({ ...state, paramGroups: [{ ...state.paramGroups[0], lr: -1 }] }),
      'paramGroups[0]: options.lr',
    ],
    [
      'state of another optimizer',
      (state) => ({ ...state, state: { 0: { step: 1, momentumBuffer: Tensor.zeros([2, 3]) } } }),
      'state[0]: expected the buffers expAvg, expAvgSq, got momentumBuffer',
    ],
    [
      'a buffer of another shape',
      editFirst({ expAvg: Tensor.zeros([3, 2]) }),
      'state[0].expAvg: expected a floating point tensor of shape [2, 3], got float32 [3, 2]',
    ],
    [
      'a buffer that is none',
      editFirst({ expAvg: 4 }),
      'state[0].expAvg: expected a floating point tensor of shape [2, 3], got 4',
    ],
    ['no step count', editFirst({ step: undefined }), 'state[0].step: expected a whole number above 0, got undefined'],
    [
      'state of a parameter that is not there',
      (state) => ({ ...state, state: { 9: state.state[0] } }),
      'no group lists the parameters of state 9',
    ],
  ])('%s', async (_what, change, message) => {
    const optimizer = await setUp();
    const before = JSON.stringify(optimizer.stateDict());
    expect(() => optimizer.loadStateDict(change(optimizer.stateDict()) as never)).toThrow(message);
    expect(JSON.stringify(optimizer.stateDict())).toBe(before);
  });
});
