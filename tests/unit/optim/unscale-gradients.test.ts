import { memory } from '../../../src/core/memory-account';
import { Parameter } from '../../../src/nn/parameter';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';

type Float = 'float32' | 'float64' | 'float16' | 'bfloat16';

function withGradients(dtype: Float, ...gradients: (readonly number[])[]): Parameter[] {
  return gradients.map((values) => {
    const parameter = new Parameter(Tensor.zeros([values.length], { dtype }));
    parameter.grad = Tensor.from(values, undefined, { dtype });
    return parameter;
  });
}

test.each(['float32', 'float64', 'float16', 'bfloat16'] as const)(
  '%s gradients are multiplied; 16-bit ones become float32 gradients, counted as gradients',
  async (dtype) => {
    const parameters = withGradients(dtype, [1, 2], [3]);
    const [given] = parameters.map(({ grad }) => grad);
    const before = memory.stats().live.gradients;
    expect(await new SGD(parameters).unscaleGradients(0.1)).toBe(false);
    const isHalf = dtype === 'float16' || dtype === 'bfloat16';
    const round = dtype === 'float64' ? (value: number) => value : Math.fround;
    expect(parameters.map(({ grad }) => grad?.toArray())).toEqual([[0.1, 0.2].map(round), [3 * 0.1].map(round)]);
    expect(parameters[0]?.grad?.dtype).toBe(isHalf ? 'float32' : dtype);
    expect(parameters[0]?.grad === given).toBe(!isHalf);
    expect(memory.stats().live.gradients - before).toBe(isHalf ? 6 : 0);
  },
);

test.each([NaN, Infinity, -Infinity])('%p anywhere is found, in every dtype', async (bad) => {
  for (const dtype of ['float32', 'float64', 'float16', 'bfloat16'] as const) {
    for (const place of [0, 7, 63]) {
      const values = new Array<number>(64).fill(1);
      values[place] = bad;
      expect(await new SGD(withGradients(dtype, [1], values, [2])).unscaleGradients(0.5)).toBe(true);
    }
  }
});

test('so is a product that a float32 cannot hold', async () => {
  expect(await new SGD(withGradients('float32', [3e38])).unscaleGradients(2)).toBe(true);
  expect(await new SGD(withGradients('float64', [3e38])).unscaleGradients(2)).toBe(false);
});

test('parameters without a gradient are passed over', async () => {
  const parameter = new Parameter(Tensor.zeros([2]));
  expect(await new SGD([parameter]).unscaleGradients(2)).toBe(false);
  expect(parameter.grad).toBeUndefined();
});
