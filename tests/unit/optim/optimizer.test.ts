import { memory } from '../../../src/core/memory-account';
import { Linear } from '../../../src/nn/linear';
import { Parameter } from '../../../src/nn/parameter';
import { Adam, AdamW } from '../../../src/optim/adam';
import { Optimizer } from '../../../src/optim/optimizer';
import { SGD } from '../../../src/optim/sgd';
import type { UpdateTarget } from '../../../src/optim/update-rule';
import { Tensor } from '../../../src/tensor/tensor';
import { tidy } from '../../../src/tensor/tidy';

const parameter = (values: readonly number[], grad?: readonly number[], name?: string) => {
  const made = new Parameter(Tensor.from(values), { name });
  if (grad !== undefined) made.grad = Tensor.from(grad);
  return made;
};

const numbers = (tensor: Tensor | undefined) => Array.from(tensor?.data ?? [], Number);

describe('what an optimizer takes', () => {
  test('a list of parameters, any iterable of them, leaf tensors, and groups with settings of their own', async () => {
    const leaf = Tensor.from([1], [1], { requiresGrad: true });
    expect(new SGD([parameter([1]), leaf], { lr: 0.5 }).paramGroups).toHaveLength(1);
    expect(new SGD(new Set([parameter([1])])).parameters).toHaveLength(1);
    expect(new SGD(new Linear(2, 2).parameters()).parameters).toHaveLength(2);
    const [a, b] = [parameter([1], [1]), parameter([1], [1])];
    const optimizer = new SGD([{ params: [a] }, { params: [b], lr: 0.25, momentum: 0.5 }], { lr: 0.5 });
    expect(optimizer.paramGroups.map(({ lr, momentum }) => [lr, momentum])).toEqual([
      [0.5, 0],
      [0.25, 0.5],
    ]);
    await optimizer.step();
    expect([a, b].map(numbers)).toEqual([[0.5], [0.75]]);
  });

  test('settings may be changed between steps', async () => {
    const p = parameter([1], [1]);
    const optimizer = new SGD([p], { lr: 0.5 });
    (optimizer.paramGroups[0] as { lr: number }).lr = 0.25;
    await optimizer.step();
    expect(numbers(p)).toEqual([0.75]);
  });

  test('a group may be added later', async () => {
    const [a, b] = [parameter([1], [1]), parameter([1], [1])];
    const optimizer = new SGD([a], { lr: 0.5 });
    optimizer.addParamGroup({ params: [b], lr: 0.25 });
    await optimizer.step();
    expect([a, b].map(numbers)).toEqual([[0.5], [0.75]]);
    expect(() => optimizer.addParamGroup({ params: [a] })).toThrow(
      'SGD.addParamGroup: a float32 tensor of shape [1] is listed twice',
    );
  });

  const computed = () => Tensor.ones([1], { requiresGrad: true }).mul(2);
  const twice = parameter([1], undefined, 'fc.bias');

  test.each([
    [() => new SGD([]), 'new SGD: expected at least one parameter, got an empty list'],
    [() => new AdamW([{ params: [] }]), 'new AdamW: group 0: expected at least one parameter'],
    [() => new SGD(new Linear(1, 1) as never), 'expected parameters, got a Module. Pass module.parameters()'],
    [() => new SGD(parameter([1]) as never), 'expected a list of parameters, got one. Pass [parameter]'],
    [() => new SGD(undefined as never), 'expected a list of parameters or of groups, got undefined'],
    [() => new SGD([parameter([1]), [1] as never]), 'expected a Parameter or a leaf tensor at index 1, got an Array'],
    [() => new SGD([computed()]), 'at index 0 was computed from other tensors, so its gradient is not kept'],
    [() => new SGD([Tensor.zeros([1], { dtype: 'int32' })]), 'expected a floating point parameter at index 0'],
    [() => new SGD([twice, twice]), "new SGD: parameter 'fc.bias' (float32 [1]) is listed twice"],
    [() => new SGD([{ params: [twice] }, { params: [twice] }]), "new SGD: group 1: parameter 'fc.bias'"],
    [() => new SGD([parameter([1])], { lr: -1 }), 'new SGD: options.lr'],
    [() => new SGD([parameter([1])], { lr: NaN }), 'new SGD: options.lr'],
    [() => new SGD([parameter([1])], { learningRate: 1 } as never), "unknown key 'learningRate'"],
    [() => new SGD([parameter([1])], { nesterov: true }), 'nesterov needs a momentum above 0 and no dampening'],
    [() => new SGD([{ params: [parameter([1])], momentum: -1 }]), 'new SGD: group 0: options.momentum'],
    [() => new Adam([parameter([1])], { betas: [0.9, 1] }), 'new Adam: options.betas.1'],
    [() => new Adam([parameter([1])], { betas: 0.9 as never }), 'new Adam: options.betas'],
    [() => new AdamW([parameter([1])], { eps: -1e-8 }), 'new AdamW: options.eps'],
  ])('and what it refuses (%#)', (make, message) => {
    expect(make).toThrow(message);
  });
});

describe('step', () => {
  test('skips parameters without a gradient, their state and step count too', async () => {
    const [a, b] = [parameter([1], [1]), parameter([1])];
    const optimizer = new Adam([a, b]);
    await optimizer.step();
    expect(numbers(b)).toEqual([1]);
    expect([optimizer.stateOf(a)?.step, optimizer.stateOf(b)]).toEqual([1, undefined]);
  });

  test('applies NaN as it is', async () => {
    const p = parameter([1, 2], [NaN, 0]);
    await new SGD([p], { lr: 0.5 }).step();
    expect(numbers(p)).toEqual([NaN, 2]);
  });

  test('a setting that is no longer valid rejects it, with nothing changed', async () => {
    const [a, b] = [parameter([1], [1]), parameter([1], [1])];
    const optimizer = new SGD([{ params: [a] }, { params: [b] }], { lr: 0.5 });
    (optimizer.paramGroups[1] as { lr: number }).lr = NaN;
    await expect(optimizer.step()).rejects.toThrow('SGD.step: paramGroups[1]: options.lr');
    expect([a, b].map(numbers)).toEqual([[1], [1]]);
  });

  test('a parameter whose memory is gone rejects it, with nothing changed', async () => {
    const [a, b] = [parameter([1], [1]), parameter([1], [1], 'head.bias')];
    const optimizer = new SGD([a, b], { lr: 0.5 });
    b.dispose();
    await expect(optimizer.step()).rejects.toThrow("parameter 'head.bias' (float32 [1]) was disposed of");
    expect(numbers(a)).toEqual([1]);
    expect(optimizer.stateOf(a)).toBeUndefined();
  });

  test.each(['bfloat16', 'float16'] as const)(
    '%s parameters are those of a float32 run, rounded once: state and master are float32',
    async (dtype) => {
      const grads = [0.3, -0.2, 0.7];
      const half = new Parameter(Tensor.from([1, -2], undefined, { dtype }));
      const optimizer = new AdamW([half], { lr: 0.1 });
      const wide = new Parameter(half.detach().to('float32'));
      const reference = new AdamW([wide], { lr: 0.1 });
      for (const grad of grads) {
        half.grad = Tensor.from([grad, grad], undefined, { dtype });
        wide.grad = half.grad.to('float32');
        await Promise.all([optimizer.step(), reference.step()]);
        expect(half.toArray()).toEqual(wide.to(dtype).toArray());
      }
      const { master, ...others } = optimizer.stateOf(half)?.buffers ?? {};
      expect(master?.toArray()).toEqual(wide.toArray());
      expect(Object.values(others).map((buffer) => buffer.dtype)).toEqual(['float32', 'float32']);
    },
  );

  test('float64 parameters keep float64 state', async () => {
    const p = new Parameter(Tensor.from([1], undefined, { dtype: 'float64' }));
    p.grad = Tensor.from([1 / 3], undefined, { dtype: 'float64' });
    const optimizer = new SGD([p], { lr: 0.1, momentum: 0.9 });
    await optimizer.step();
    expect(p.item()).toBe(1 - 0.1 * (1 / 3));
    expect(optimizer.stateOf(p)?.buffers['momentumBuffer']?.item()).toBe(1 / 3);
  });

  test('state is counted as optimizer memory, made at the first step, and outlives a tidy', async () => {
    const p = parameter(new Array<number>(100).fill(1), new Array<number>(100).fill(1));
    const before = memory.stats().live.optimizer;
    const optimizer = new Adam([p]);
    expect(memory.stats().live.optimizer).toBe(before);
    await tidy(async () => optimizer.step());
    expect(memory.stats().live.optimizer - before).toBe(800);
    await optimizer.step();
    expect(memory.stats().live.optimizer - before).toBe(800);
  });

  test('zeroGrad drops gradients', () => {
    const p = parameter([1], [1]);
    new SGD([p]).zeroGrad();
    expect(p.grad).toBeUndefined();
  });
});

describe('an update of a part is the part of the update, where the optimizer says so', () => {
  const length = 37;
  const values = (seed: number) => Float32Array.from({ length }, (_, i) => Math.sin(seed * 100 + i));

  test.each([
    ['SGD', new SGD([parameter([1])], { lr: 0.1, momentum: 0.9, weightDecay: 0.1, nesterov: true })],
    ['Adam', new Adam([parameter([1])], { weightDecay: 0.1 })],
    ['AdamW', new AdamW([parameter([1])])],
  ] as const)('%s', (_name, optimizer: Optimizer) => {
    expect(optimizer.isElementwise).toBe(true);
    const settings = optimizer.paramGroups[0] as { lr: number };
    const target = (step: number, cut: (list: Float32Array) => Float32Array = (list) => list): UpdateTarget => ({
      parameter: cut(values(1)),
      gradient: cut(values(2)),
      state: Object.fromEntries(
        optimizer.stateNames(settings).map((name, i) => [name, cut(values(3 + i).map(Math.abs))]),
      ),
      step,
    });
    for (const step of [1, 5]) {
      const whole = target(step);
      optimizer.update(whole, settings);
      for (const [start, end] of [
        [0, 1],
        [3, 20],
        [20, length],
      ] as const) {
        const part = target(step, (list) => list.slice(start, end));
        optimizer.update(part, settings);
        expect(part.parameter).toEqual(whole.parameter.slice(start, end));
        for (const [name, buffer] of Object.entries(part.state)) {
          expect(buffer).toEqual(whole.state[name]?.slice(start, end));
        }
      }
    }
  });
});

test('an optimizer of your own needs the names of its state and an update', async () => {
  /** Sign descent with a count of its updates in every element. */
  class SignSGD extends Optimizer<{ lr: number }, { readonly lr?: number }> {
    override readonly isElementwise = true;

    constructor(params: Iterable<Tensor>, options: { readonly lr?: number } = {}) {
      super(params, options, (given) => ({ lr: 0.1, ...(given as object) }));
    }

    override stateNames() {
      return ['count'];
    }

    override update({ parameter: values, gradient, state }: UpdateTarget, { lr }: { lr: number }) {
      for (let i = 0; i < values.length; i++) {
        values[i]! -= lr * Math.sign(gradient[i]!);
        state['count']![i]!++;
      }
    }
  }
  const p = parameter([1, 1], [5, -3]);
  const optimizer = new SignSGD([p], { lr: 0.5 });
  await optimizer.step();
  await optimizer.step();
  expect(numbers(p)).toEqual([0, 2]);
  expect(numbers(optimizer.stateOf(p)?.buffers['count'])).toEqual([2, 2]);
});
