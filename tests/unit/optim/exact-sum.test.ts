import fc from 'fast-check';
import { Generator } from '../../../src/core/generator';
import { ExactSum } from '../../../src/optim/exact-sum';
import { holds } from '../../helpers/property';

const bitsOf = (value: number): bigint => new BigUint64Array(Float64Array.of(value).buffer)[0] as bigint;

/** A double as a fraction with denominator 2^1074, without floating point arithmetic. */
function exact(value: number): bigint {
  const bits = bitsOf(value);
  const exponent = (bits >> 52n) & 0x7ffn;
  const mantissa = bits & 0xfffffffffffffn;
  const magnitude = exponent === 0n ? mantissa : (mantissa + 2n ** 52n) * 2n ** (exponent - 1n);
  return bits >> 63n === 1n ? -magnitude : magnitude;
}

/** True if no double is nearer to `sum` / 2^1074 than `value` is. */
function isNearest(value: number, sum: bigint): boolean {
  const distance = (candidate: number): bigint => {
    const difference = exact(candidate) - sum;
    return difference < 0n ? -difference : difference;
  };
  const step = (by: bigint): number => Number(new Float64Array(BigUint64Array.of(bitsOf(value) + by).buffer)[0]);
  return value === 0 ? sum === 0n : [1n, -1n].every((by) => distance(value) <= distance(step(by)));
}

const float32s = fc.float32Array({ noNaN: true, noDefaultInfinity: true, maxLength: 60 });
const doubles = fc.array(fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e300, max: 1e300 }), {
  maxLength: 40,
});

const sumOfSquares = (values: Float32Array | Float64Array): number => {
  const sum = new ExactSum();
  sum.addSquares(values);
  return sum.value;
};

describe('ExactSum', () => {
  test('a sum of squares of float32 is the double nearest to the true sum', () => {
    holds(
      'sums of squares of float32',
      fc.property(float32s, (values) => {
        const truth = values.reduce((sum, value) => sum + exact(value * value), 0n); // a square has 48 bits: exact
        expect(isNearest(sumOfSquares(values), truth)).toBe(true);
      }),
    );
  });

  test('a sum of doubles of any size and sign is the double nearest to the true sum', () => {
    holds(
      'sums of doubles',
      fc.property(doubles, (values) => {
        const sum = new ExactSum();
        values.forEach((value) => sum.add(value));
        expect(
          isNearest(
            sum.value,
            values.reduce((total, value) => total + exact(value), 0n),
          ),
        ).toBe(true);
      }),
    );
  });

  test('any order and any cut in pieces gives the same bits, also over ranks that add their digits', () => {
    const cases = fc.tuple(float32s, fc.nat(), fc.integer({ min: 1, max: 7 }));
    holds(
      'sums in any order and cut',
      fc.property(cases, ([values, seed, ranks]) => {
        const generator = new Generator(seed);
        const shuffled = Float32Array.from(generator.permutation(values.length), (index) => values[index] as number);
        const owner = Array.from(shuffled, () => generator.nextBelow(ranks));
        const digits = Array.from({ length: ranks }, (_, rank) => {
          const part = new ExactSum();
          part.addSquares(shuffled.filter((_value, i) => owner[i] === rank));
          return part.toDigits();
        });
        const reduced = digits.reduce((sum, rank) => sum.map((digit, i) => digit + (rank[i] as number)));
        const together = new ExactSum();
        together.addDigits(reduced);
        expect(bitsOf(together.value)).toBe(bitsOf(sumOfSquares(values)));
      }),
    );
  });

  test('where float64 summation depends on the order, this does not', () => {
    const generator = new Generator(3);
    const values = Float32Array.from({ length: 20_000 }, () => generator.nextNormal() * 10 ** generator.nextBelow(9));
    const naive = (list: Float32Array): number => list.reduce((sum, value) => sum + value * value, 0);
    const reversed = values.toReversed();
    expect(naive(reversed)).not.toBe(naive(values));
    expect(sumOfSquares(reversed)).toBe(sumOfSquares(values));
  });

  test('powers and float64 squares, each rounded once, sum to the same bits in any order', () => {
    const generator = new Generator(4);
    const values = Float64Array.from({ length: 3000 }, () => generator.nextNormal() * 10 ** generator.nextBelow(20));
    for (const add of [
      (sum: ExactSum, list: Float64Array) => sum.addPowers(list, 1),
      (sum: ExactSum, list: Float64Array) => sum.addPowers(list, 3),
      (sum: ExactSum, list: Float64Array) => sum.addPowers(list, 0.5),
      (sum: ExactSum, list: Float64Array) => sum.addSquares(list),
    ]) {
      const [forward, backward] = [new ExactSum(), new ExactSum()];
      add(forward, values);
      add(backward, values.toReversed());
      expect(backward.value).toBe(forward.value);
    }
  });

  test('more numbers of one size than a bin takes are still summed exactly', () => {
    const sum = new ExactSum();
    const ones = new Float32Array(2 ** 25 + 3).fill(Math.fround(1.1));
    sum.addSquares(ones);
    expect(isNearest(sum.value, exact(Math.fround(1.1) ** 2) * BigInt(ones.length))).toBe(true);
  });

  test.each([
    ['nothing', [], 0],
    ['the largest double twice', [Number.MAX_VALUE, Number.MAX_VALUE], Infinity],
    ['the largest double, and back', [Number.MAX_VALUE, Number.MAX_VALUE, -Number.MAX_VALUE], Number.MAX_VALUE],
    ['the smallest double', [5e-324, 5e-324], 1e-323],
    ['a subnormal and a large number that cancels', [1e300, 5e-324, -1e300], 5e-324],
    ['a tie, to even', [2 ** 53, 1], 2 ** 53],
    ['just above a tie', [2 ** 53, 1, 5e-324], 2 ** 53 + 2],
    ['infinity', [1, Infinity, 2], Infinity],
    ['opposite infinities', [Infinity, 1, -Infinity], NaN],
    ['NaN', [NaN, Infinity], NaN],
  ])('%s', (_title, values, expected) => {
    const sum = new ExactSum();
    values.forEach((value) => sum.add(value));
    expect(sum.value).toBe(expected);
    const copy = new ExactSum();
    copy.addDigits(sum.toDigits());
    expect(copy.value).toBe(expected);
  });

  test('squares of infinite and NaN elements show in the sum', () => {
    expect(sumOfSquares(Float32Array.of(1, -Infinity))).toBe(Infinity);
    expect(sumOfSquares(Float32Array.of(1, NaN, Infinity))).toBeNaN();
    expect(sumOfSquares(Float64Array.of(1, 1e200))).toBe(Infinity); // its square is not a finite double
  });
});
