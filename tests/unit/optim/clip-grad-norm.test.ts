import fc from 'fast-check';
import { Generator } from '../../../src/core/generator';
import { Parameter } from '../../../src/nn/parameter';
import { clipGradNorm } from '../../../src/optim/clip-grad-norm';
import { GradientNorm } from '../../../src/optim/gradient-norm';
import { Storage } from '../../../src/tensor/storage';
import { Tensor } from '../../../src/tensor/tensor';
import { holds } from '../../helpers/property';

function parametersWith(...gradients: readonly (readonly number[] | Float32Array)[]): Parameter[] {
  return gradients.map((gradient) => {
    const parameter = new Parameter(Tensor.zeros([gradient.length]));
    parameter.grad = Tensor.from(gradient);
    return parameter;
  });
}

const gradientsOf = (parameters: readonly Tensor[]) =>
  parameters.map(({ grad }) => Array.from(grad?.data ?? [], Number));

describe('clipGradNorm', () => {
  test('returns the norm before, of all gradients together, and scales them', async () => {
    const parameters = parametersWith([3], [0, 4]);
    expect(await clipGradNorm(parameters, 1)).toBe(5);
    const scale = Math.fround(1 / (5 + 1e-6));
    expect(gradientsOf(parameters)).toEqual([[Math.fround(3 * scale)], [0, Math.fround(4 * scale)]]);
  });

  test('leaves smaller gradients alone, to the bit, and measures only with maxNorm Infinity', async () => {
    const parameters = parametersWith([0.1, -0.7]);
    const before = gradientsOf(parameters);
    await clipGradNorm(parameters, 1);
    expect(await clipGradNorm(parametersWith([Infinity, 1]), Infinity)).toBe(Infinity);
    expect(await clipGradNorm(parameters, Infinity)).toBeCloseTo(Math.hypot(0.1, 0.7), 7);
    expect(gradientsOf(parameters)).toEqual(before);
  });

  test.each([
    [1, 7],
    [2, 5],
    [Infinity, 4],
    [3, 91 ** (1 / 3)],
    [0.5, (Math.sqrt(3) + 2) ** 2],
  ])('normType %p', async (normType, expected) => {
    expect(await clipGradNorm(parametersWith([3], [-4]), 100, { normType })).toBeCloseTo(expected, 12);
  });

  test('a NaN gives NaN and spreads, whatever the norm', async () => {
    for (const normType of [1, 2, 3, Infinity]) {
      const parameters = parametersWith([1, NaN], [2]);
      expect(await clipGradNorm(parameters, 1, { normType })).toBeNaN();
      expect(gradientsOf(parameters)).toEqual([[NaN, NaN], [NaN]]);
    }
  });

  test('passes over parameters without a gradient; none at all gives 0', async () => {
    const [first] = parametersWith([6, 8]);
    expect(await clipGradNorm([first as Parameter, new Parameter(Tensor.zeros([2]))], 100)).toBe(10);
    expect(await clipGradNorm([new Parameter(Tensor.zeros([2]))], 1)).toBe(0);
    expect(await clipGradNorm([], 1)).toBe(0);
    expect(await clipGradNorm(first as Parameter, 100)).toBe(10);
  });

  test.each(['float16', 'bfloat16', 'float64'] as const)('%s gradients', async (dtype) => {
    const parameter = new Parameter(Tensor.zeros([2], { dtype }));
    parameter.grad = Tensor.from([3, 4], undefined, { dtype });
    expect(await clipGradNorm([parameter], 2.5)).toBe(5);
    expect(parameter.grad?.dtype).toBe(dtype);
    const [a, b] = Array.from(parameter.grad?.to('float64').data ?? [], Number);
    expect([a, b].map((value) => Number(value).toFixed(2))).toEqual(['1.50', '2.00']);
  });

  test('a gate that rejects leaves all gradients alone', async () => {
    const parameters = parametersWith([30], [40]);
    (parameters[1] as Parameter).gradientGate = {
      settle: async (operation) => Promise.reject(new Error(`${operation}: call syncGradients() first`)),
    };
    await expect(clipGradNorm(parameters, 1)).rejects.toThrow('clipGradNorm(): call syncGradients() first');
    expect(gradientsOf(parameters)).toEqual([[30], [40]]);
  });

  test('a sharded parameter is refused, naming it and what to call', async () => {
    const [sharded] = parametersWith([1]) as [Parameter];
    sharded.name = 'fc.weight';
    sharded.placement = { group: { rank: 0, size: 2 }, dim: 0 };
    await expect(clipGradNorm([sharded], 1)).rejects.toThrow(
      /only a part of parameter 'fc.weight'.*clipGradNorm method of the optimizer/,
    );
  });

  test.each([
    [() => clipGradNorm(parametersWith([1]), NaN), 'expected a maxNorm of 0 or more, got NaN'],
    [() => clipGradNorm(parametersWith([1]), -1), 'expected a maxNorm of 0 or more, got -1'],
    [() => clipGradNorm(parametersWith([1]), undefined as never), 'got undefined'],
    [
      () => clipGradNorm(parametersWith([1]), 1, { normType: 0 }),
      'normType: expected a number above 0 or Infinity, got 0',
    ],
    [() => clipGradNorm(parametersWith([1]), 1, { normType: 'inf' as never }), 'options.normType'],
    [() => clipGradNorm(parametersWith([1]), 1, { norm: 2 } as never), "unknown key 'norm'"],
    [() => clipGradNorm([1 as never], 1), 'expected a tensor at index 0, got 1'],
    [() => clipGradNorm(undefined as never, 1), 'expected a list of parameters or of groups, got undefined'],
  ])('a wrong argument is named (%#)', async (call, message) => {
    await expect(call()).rejects.toThrow(message);
  });
});

describe('the bits of a norm', () => {
  const wide = (generator: Generator) => Math.fround(generator.nextNormal() * 2 ** (generator.nextBelow(60) - 30));

  test('do not depend on how gradients are cut in tensors, nor on their order', () => {
    const cases = fc.tuple(fc.nat(), fc.integer({ min: 1, max: 300 }), fc.constantFrom(1, 2, 2.5, Infinity));
    holds(
      'gradient norms',
      fc.property(cases, ([seed, length, normType]) => {
        const generator = new Generator(seed);
        const values = Float32Array.from({ length }, () => wide(generator));
        const whole = new GradientNorm(normType);
        whole.add(Storage.of(values));

        const ranks = Array.from({ length: 3 }, () => new GradientNorm(normType));
        for (let start = 0; start < length;) {
          const end = Math.min(length, start + 1 + generator.nextBelow(40));
          ranks[generator.nextBelow(3)]?.add(Storage.of(values.slice(start, end).reverse()));
          start = end;
        }
        const parts = ranks.map((rank) => rank.toParts());
        const op = parts[0]?.op === 'Max' ? Math.max : (a: number, b: number) => a + b;
        const reduced = parts
          .map((part) => part.values)
          .reduce((a, b) => a.map((value, i) => op(value, b[i] as number)));
        const together = new GradientNorm(normType);
        together.addParts(reduced);
        expect(together.value).toBe(whole.value);
      }),
    );
  });
});
