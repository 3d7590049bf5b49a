import { memory } from '../../../src/core/memory-account';
import { Parameter } from '../../../src/nn/parameter';
import { Adam, AdamW } from '../../../src/optim/adam';
import { SGD } from '../../../src/optim/sgd';
import { updateSlice } from '../../../src/optim/slice-update';
import { emptyParameterState } from '../../../src/optim/parameter-state';
import { Storage } from '../../../src/tensor/storage';
import { Tensor } from '../../../src/tensor/tensor';

type Half = 'bfloat16' | 'float16';

const half = (values: readonly number[], dtype: Half = 'bfloat16') =>
  new Parameter(Tensor.from(values, undefined, { dtype }));

async function step(optimizer: SGD | Adam, gradient: number): Promise<void> {
  for (const parameter of optimizer.parameters) parameter.grad = Tensor.full(parameter.shape, gradient);
  await optimizer.step();
}

describe.each(['bfloat16', 'float16'] as const)('the master of a %s parameter', (dtype) => {
  test('sums up updates each of which alone would round to nothing', async () => {
    const parameter = half([1], dtype);
    const optimizer = new SGD([parameter], { lr: 1e-4 });
    await step(optimizer, 1);
    expect(parameter.item()).toBe(1);
    for (let i = 1; i < 100; i++) await step(optimizer, 1);
    expect(parameter.item()).toBe(Tensor.from([0.99]).to(dtype).item());
    expect(optimizer.stateOf(parameter)?.buffers['master']?.item()).toBeCloseTo(0.99, 5);
  });

  test('starts anew from elements that a program has changed, and only from these', async () => {
    const parameter = half([1, 1], dtype);
    const optimizer = new SGD([parameter], { lr: 1e-5 });
    await step(optimizer, 1);
    (parameter.data as Uint16Array)[0] = (Tensor.from([2]).to(dtype).data as Uint16Array)[0] as number;
    await step(optimizer, 1);
    const master = optimizer.stateOf(parameter)?.buffers['master']?.toArray() as number[];
    expect(master[0]).toBeCloseTo(2 - 1e-5, 6);
    expect(master[1]).toBeCloseTo(1 - 2e-5, 6);
  });
});

describe('a master in saved state', () => {
  test('resumes with the same bits', async () => {
    const [whole, resumed] = [half([1, -2]), half([1, -2])];
    const [first, second] = [new AdamW([whole]), new AdamW([resumed])];
    for (let i = 0; i < 3; i++) await step(first, 0.01);
    resumed.data.set(whole.data as never);
    second.loadStateDict(first.stateDict());
    for (const optimizer of [first, second]) await step(optimizer, 0.01);
    expect(second.stateDict()).toEqual(first.stateDict());
    expect(second.stateDict().state[0]?.['master']).toBeInstanceOf(Tensor);
  });

  test('may be missing, as in a state from before: it starts from the parameter', async () => {
    const parameter = half([1]);
    const state = { state: { 0: { step: 1 } }, paramGroups: [{ params: [0], lr: 1e-5 }] };
    const optimizer = new SGD([parameter], { lr: 1e-5 });
    optimizer.loadStateDict(state);
    await step(optimizer, 1);
    expect(optimizer.stateOf(parameter)?.buffers['master']?.item()).toBeCloseTo(1 - 1e-5, 6);
  });

  test('does not fit a float32 parameter', () => {
    const state = { state: { 0: { step: 1, master: Tensor.ones([1]) } }, paramGroups: [{ params: [0] }] };
    expect(() => {
      new SGD([new Parameter(Tensor.ones([1]))]).loadStateDict(state);
    }).toThrow('state[0]: expected the buffers (none), got master. A master copy belongs to a 16-bit parameter');
  });
});

test('a master is counted as optimizer memory, 4 bytes an element', async () => {
  const before = memory.stats().live.optimizer;
  const optimizer = new Adam([half(new Array<number>(100).fill(1))]);
  await step(optimizer, 1);
  expect(memory.stats().live.optimizer - before).toBe(1200);
});

test('updates of the parts of a parameter are the parts of its update', async () => {
  const values = Array.from({ length: 11 }, (_, i) => Math.sin(i));
  const parameter = half(values, 'float16');
  const optimizer = new AdamW([parameter], { lr: 0.1 });
  const flat = Storage.of(half(values, 'float16').data);
  const kept = [emptyParameterState(), emptyParameterState()];
  for (let i = 0; i < 3; i++) {
    const gradient = Storage.of(Float32Array.from(values, (value) => value * i - 1));
    parameter.grad = new Tensor({ storage: gradient.clone(), shape: parameter.shape });
    await optimizer.step();
    for (const [part, start, length] of [
      [0, 0, 4],
      [1, 4, 7],
    ] as const) {
      const slice = { parameter: flat.view(start, length), gradient: gradient.view(start, length) };
      updateSlice(optimizer, { ...slice, kept: kept[part] as never }, optimizer.settingsOf(0));
    }
    expect(flat.buffer).toEqual(parameter.data);
  }
  const masters = kept.flatMap(({ buffers }) => buffers['master']?.toArray() as number[]);
  expect(masters).toEqual(optimizer.stateOf(parameter)?.buffers['master']?.toArray());
});
