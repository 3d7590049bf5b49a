import fc from 'fast-check';
import { fromBFloat16Bits, fromFloat16Bits, toBFloat16Bits, toFloat16Bits } from '../../../src/core/half';
import { Generator } from '../../../src/core/generator';
import { linear } from '../../../src/tensor/functional';
import { Tensor } from '../../../src/tensor/tensor';
import { holds } from '../../helpers/property';

const HALVES = [
  ['float16', (x: number) => fromFloat16Bits(toFloat16Bits(x))],
  ['bfloat16', (x: number) => fromBFloat16Bits(toBFloat16Bits(x))],
] as const;

describe.each(HALVES)('%s', (dtype, round) => {
  const values = fc.array(fc.float({ noNaN: true, noDefaultInfinity: true, min: -100, max: 100 }), {
    minLength: 1,
    maxLength: 20,
  });

  test('operators compute in float32 and round once', () => {
    holds(
      `${dtype} arithmetic`,
      fc.property(values, fc.double({ noNaN: true, min: 0.1, max: 9 }), (numbers, scalar) => {
        const x = Tensor.from(numbers, undefined, { dtype });
        const elements = x.toArray() as number[];
        const number = Math.fround(scalar); // a plain number is not rounded to 16 bits
        expect(x.dtype).toBe(dtype);
        expect(x.mul(scalar).toArray()).toEqual(elements.map((e) => round(Math.fround(e * number))));
        expect(x.add(x).toArray()).toEqual(elements.map((e) => round(Math.fround(e + e))));
        expect(x.sum().item()).toBe(round(Math.fround(elements.reduce((total, e) => total + e, 0))));
      }),
    );
  });

  test('a long sum does not stop where 16 bits end', () => {
    expect(Tensor.ones([5000], { dtype }).sum().item()).toBe(round(5000));
    const ones = Tensor.ones([1, 5000], { dtype });
    expect(ones.matmul(ones.transpose(0, 1)).item()).toBe(round(5000));
  });

  test('gradients have the dtype of their tensor', async () => {
    const generator = new Generator(1);
    const x = Tensor.randn([3, 4], { generator, dtype });
    const weight = Tensor.randn([2, 4], { generator, dtype, requiresGrad: true });
    await linear(x, weight).gelu().softmax(-1).mul(3).sum().backward();
    expect(weight.grad?.dtype).toBe(dtype);
    expect(weight.grad?.shape).toEqual([2, 4]);
  });
});

describe('integers', () => {
  test('add, sub, mul and neg wrap in their dtype', () => {
    const bytes = Tensor.from(Uint8Array.of(200, 3));
    expect(bytes.add(bytes)).toEqual(Tensor.from(Uint8Array.of(144, 6)));
    const ints = Tensor.from(Int32Array.of(2 ** 31 - 1, -7));
    expect(ints.add(1).toArray()).toEqual([-(2 ** 31), -6]);
    expect(ints.mul(ints).toArray()).toEqual([1, 49]);
    expect(ints.neg().toArray()).toEqual([-(2 ** 31 - 1), 7]);
    const big = Tensor.from([2n ** 62n, 5n]);
    expect(big.add(big).toArray()).toEqual([-(2n ** 63n), 10n]);
    expect(big.mul(2n ** 40n + 1n).toArray()).toEqual([2n ** 62n, 5n * (2n ** 40n + 1n)]);
    expect(big.sub(1).toArray()).toEqual([2n ** 62n - 1n, 4n]);
  });

  test('sums are int64, so that they do not wrap', () => {
    expect(Tensor.ones([300], { dtype: 'uint8' }).sum()).toEqual(Tensor.from(300n));
    expect(
      Tensor.full([3], 2 ** 31 - 1, { dtype: 'int32' })
        .sum()
        .item(),
    ).toBe(3 * (2 ** 31 - 1));
    expect(Tensor.from([[1n, 2n], [3n, 4n]]).sum(0).toArray()).toEqual([4n, 6n]); // prettier-ignore
    expect(
      Tensor.from(Int32Array.of(3, -5, 4))
        .max()
        .item(),
    ).toBe(4);
    expect(Tensor.from([3n, 9n, 4n]).argmax().item()).toBe(1);
  });

  test('what integers cannot do is refused, with the cast that helps', () => {
    const ints = Tensor.from(Int32Array.of(1, 2));
    expect(() => ints.div(2)).toThrow(/div: integers are not divided or raised, got int32. Use .to\('float32'\)/);
    expect(() => ints.add(0.5)).toThrow(/an int32 tensor takes whole numbers, got 0.5/);
    expect(() => ints.exp()).toThrow(/exp: expected a floating point tensor, got int32/);
    expect(() => ints.mean()).toThrow(/mean: expected a floating point tensor/);
    expect(() => ints.reshape(2, 1).matmul(ints.reshape(1, 2))).toThrow(/matmul: expected a floating point tensor/);
    expect(() => ints.pow(2)).toThrow(/pow: expected a floating point tensor/);
    expect(() => Tensor.from([1n]).max()).toThrow(/int64 is not supported/);
  });
});

test('nothing is converted silently: different dtypes are refused, with the cast that helps', () => {
  const single = Tensor.from([1, 2]);
  const double = single.to('float64');
  for (const operator of ['add', 'mul', 'div', 'matmul', 'eq'] as const) {
    expect(() => single[operator](double)).toThrow(/dtypes float32 and float64 differ.*\.to\('float32'\)/);
  }
});

test('a number takes the dtype of the tensor; float64 keeps all its digits', () => {
  expect(Tensor.from([1]).add(0.1).dtype).toBe('float32');
  expect(Tensor.from([1], undefined, { dtype: 'float64' }).mul(0.1).item()).toBe(0.1);
  expect(Tensor.from([9]).mul(0.1).item()).toBe(Math.fround(9 * Math.fround(0.1))); // as torch; 9 * 0.1 rounds down
});
