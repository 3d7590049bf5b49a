import fc from 'fast-check';
import { holds } from '../../helpers/property';
import { reducedElement, storedValue } from '../../helpers/reduction';
import { bfloat16Value, float16Value } from '../../helpers/rounding';
import { storeValues } from '../../helpers/fill';
import { CANONICAL_NAN, FLOAT_DTYPES, withBits } from '../../helpers/nan-bits';
import {
  allocateBuffer,
  bytesOf,
  copyBuffer,
  DTYPES,
  type DType,
  type HostBuffer,
  isFloatDType,
  viewBuffer,
} from '../../../src/core/dtype';
import { InternalError } from '../../../src/core/errors';
import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import { isBitOp, ReduceOp } from '../../../src/core/reduce-op';
import { divideBuffer, reduceBuffers } from '../../../src/core/reduce';

const ops = Object.values(ReduceOp);

function reduced(dtype: DType, op: ReduceOp, inputs: readonly HostBuffer[]): HostBuffer {
  const target = allocateBuffer(dtype, (inputs[0] as HostBuffer).length);
  reduceBuffers(target, inputs, op);
  return target;
}

const floatOps = ops.filter((op) => !isBitOp(op));
const sizes = fc.constantFrom(1, 2, 3, 4, 7);

/** `size` rows of equal length. */
function rows<Element>(size: number, element: fc.Arbitrary<Element>): fc.Arbitrary<Element[][]> {
  return fc
    .integer({ min: 0, max: 9 })
    .chain((length) =>
      fc.array(fc.array(element, { minLength: length, maxLength: length }), { minLength: size, maxLength: size }),
    );
}

/** Any value of the dtype, bits without meaning included; no negative zeros, since Min and Max may give either zero. */
function elements(dtype: DType): fc.Arbitrary<number | bigint> {
  const stored = (value: number): number | bigint => storedValue(dtype, value + 0);
  switch (dtype) {
    case 'float64':
      return fc.double().map(stored);
    case 'float32':
      return fc.float().map(stored);
    case 'float16':
      return fc.integer({ min: 0, max: 0xffff }).map((bits) => stored(float16Value(bits)));
    case 'bfloat16':
      return fc.integer({ min: 0, max: 0xffff }).map((bits) => stored(bfloat16Value(bits)));
    case 'int64':
      return fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });
    default:
      return fc.integer().map(stored);
  }
}

const store = (dtype: DType, values: readonly (number | bigint)[]): HostBuffer => {
  if (dtype === 'int64') return BigInt64Array.from(values as readonly bigint[]);
  return storeValues(dtype, values as readonly number[]);
};

const valuesIn = (buffer: HostBuffer): (number | bigint)[] =>
  Array.from<number | bigint>('toFloat32' in buffer ? buffer.toFloat32() : buffer);

describe.each(DTYPES)('%s in rank order', (dtype) => {
  test.each(isFloatDType(dtype) ? floatOps : ops)('%s is what the definition says', (op) => {
    holds(
      `${dtype} ${op}`,
      fc.property(
        sizes.chain((size) => rows(size, elements(dtype))),
        (inputs) => {
          const expected = inputs[0]?.map((_unused, i) =>
            reducedElement(
              dtype,
              op,
              inputs.map((row) => row[i] as number | bigint),
            ),
          );
          const result = reduced(
            dtype,
            op,
            inputs.map((row) => store(dtype, row)),
          );
          expect(valuesIn(result)).toEqual(expected);
        },
      ),
    );
  });
});

describe('known values', () => {
  test.each([
    ['int64 wraps', BigInt64Array.of(2n ** 62n), BigInt64Array.of(2n ** 62n), 'Sum', BigInt64Array.of(-(2n ** 63n))],
    [
      'int64 is exact above 2^53',
      BigInt64Array.of(2n ** 53n + 1n),
      BigInt64Array.of(2n ** 53n + 2n),
      'Sum',
      BigInt64Array.of(18014398509481987n),
    ],
    ['uint8 wraps', Uint8Array.of(200), Uint8Array.of(200), 'Sum', Uint8Array.of(144)],
    ['int8 wraps', Int8Array.of(-128), Int8Array.of(-128), 'Sum', Int8Array.of(0)],
    ['uint8 averages without wrapping', Uint8Array.of(200), Uint8Array.of(201), 'Average', Uint8Array.of(200)],
    ['averages truncate toward zero', Int32Array.of(-3), Int32Array.of(0), 'Average', Int32Array.of(-1)],
    [
      'int64 averages truncate toward zero',
      BigInt64Array.of(-3n),
      BigInt64Array.of(0n),
      'Average',
      BigInt64Array.of(-1n),
    ],
    [
      'float16 overflows to infinity',
      Float16Buffer.from([60000]),
      Float16Buffer.from([60000]),
      'Sum',
      Float16Buffer.from([Infinity]),
    ],
    [
      'float16 averages do not overflow on the way',
      Float16Buffer.from([40000]),
      Float16Buffer.from([40000]),
      'Average',
      Float16Buffer.from([40000]),
    ],
    [
      'float16 averages do not underflow on the way',
      Float16Buffer.fromBits([1]),
      Float16Buffer.fromBits([1]),
      'Average',
      Float16Buffer.fromBits([1]),
    ],
    ['float16 ties go to even', Float16Buffer.from([2048]), Float16Buffer.from([1]), 'Sum', Float16Buffer.from([2048])],
    ['NaN wins in Max from the left', Float32Array.of(NaN), Float32Array.of(1), 'Max', Float32Array.of(NaN)],
    ['NaN wins in Max from the right', Float32Array.of(1), Float32Array.of(NaN), 'Max', Float32Array.of(NaN)],
    ['NaN wins in Min from the left', Float64Array.of(NaN), Float64Array.of(1), 'Min', Float64Array.of(NaN)],
    [
      'NaN wins in Min from the right',
      BFloat16Buffer.from([1]),
      BFloat16Buffer.from([NaN]),
      'Min',
      BFloat16Buffer.from([NaN]),
    ],
  ] as const)('%s', (_what, a, b, op, expected) => {
    const target = a.slice() as HostBuffer;
    reduceBuffers(target, [a, b], op);
    const values = (buffer: unknown): unknown =>
      buffer instanceof Float16Buffer || buffer instanceof BFloat16Buffer ? buffer.toFloat32() : buffer;
    expect(values(target)).toEqual(values(expected)); // the sign of a NaN means nothing
  });

  test('three float16 numbers are rounded once, not after each step', () => {
    const inputs = [2048, 1, 1].map((value) => Float16Buffer.from([value]));
    expect([...(reduced('float16', 'Sum', inputs) as Float16Buffer).toFloat32()]).toEqual([2050]);
  });

  test('the order of the ranks is kept: float32 sums differ when it is reversed', () => {
    const inputs = [2 ** 24, 1, 1].map((value) => Float32Array.of(value));
    expect(reduced('float32', 'Sum', inputs)).toEqual(Float32Array.of(2 ** 24));
    expect(reduced('float32', 'Sum', inputs.reverse())).toEqual(Float32Array.of(2 ** 24 + 2));
  });

  test('the accumulator starts as the first element: the sum of negative zeros is negative', () => {
    expect(reduced('float32', 'Sum', [Float32Array.of(-0), Float32Array.of(-0)])).toEqual(Float32Array.of(-0));
  });
});

describe('NaN', () => {
  const nanOps = ['Sum', 'Product', 'Average', 'Min', 'Max'] as const;
  const bitsAt = (buffer: HostBuffer, i: number): string =>
    Buffer.from(bytesOf(viewBuffer(buffer, i, 1)))
      .reverse()
      .toString('hex');

  test.each(FLOAT_DTYPES)(
    '%s: the canonical NaN comes out, wherever in the buffer and on whichever rank it is',
    (dtype) => {
      const negative = withBits(dtype, BigInt(`0x${'f'.repeat(CANONICAL_NAN[dtype].length)}`));
      for (const op of nanOps) {
        for (const [length, positions] of [
          [9, [0, 1, 2, 3, 4, 5, 6, 7, 8]],
          [9001, [4095, 4096, 8191, 9000]],
        ] as const) {
          for (const size of length === 9 ? [2, 3, 4, 5, 6, 7] : [2, 4]) {
            for (const at of positions) {
              const inputs = Array.from({ length: size }, (_unused, rank) => irregular(dtype, length, rank));
              const rank = at % size;
              copyBuffer(inputs[rank] as HostBuffer, negative, at);
              const result = reduced(dtype, op, inputs);
              expect(bitsAt(result, at)).toBe(CANONICAL_NAN[dtype]);
              expect(valuesIn(result).filter(Number.isNaN)).toHaveLength(1);
            }
          }
        }
      }
    },
  );

  test.each(['float32', 'float64'] as const)('%s: comes out of the division that ends an average as well', (dtype) => {
    const negative = withBits(dtype, BigInt(`0x${'f'.repeat(CANONICAL_NAN[dtype].length)}`));
    const sums = storeValues(dtype, [6, 6, Infinity]);
    copyBuffer(sums, negative, 1);
    divideBuffer(sums, 3);
    expect(bitsAt(sums, 1)).toBe(CANONICAL_NAN[dtype]);
    expect(valuesIn(sums)).toEqual([2, NaN, Infinity]);
  });

  test.each(FLOAT_DTYPES)('%s: infinities of both signs side by side are left as they are', (dtype) => {
    const inputs = [1, 2, 3].map(() => storeValues(dtype, [Infinity, -Infinity, 1]));
    expect(valuesIn(reduced(dtype, 'Sum', inputs))).toEqual([Infinity, -Infinity, 3]);
    expect(valuesIn(reduced(dtype, 'Average', inputs))).toEqual([Infinity, -Infinity, 1]);
  });
});

describe('memory', () => {
  test.each([0, 1, 2])('the target may be input %i', (index) => {
    const inputs = [1, 10, 100].map((value) => Float32Array.of(value, 2 * value));
    reduceBuffers(inputs[index] as Float32Array, inputs, 'Sum');
    expect(inputs.map((input, i) => (i === index ? [...input] : 'left alone'))).toContainEqual([111, 222]);
    inputs.forEach((input, i) => {
      if (i !== index) expect([...input]).toEqual([10 ** i, 2 * 10 ** i]);
    });
  });

  test.each(DTYPES)('%s: an element does not depend on its position, nor on how the buffer is cut', (dtype) => {
    const length = 9001; // more than two blocks of the implementation, whatever they are
    const inputs = [0, 1, 2].map((rank) => irregular(dtype, length, rank));
    const op = isFloatDType(dtype) ? 'Average' : 'Product';
    const whole = reduced(dtype, op, inputs);
    for (const [start, count] of [
      [0, 1],
      [4095, 2],
      [8191, 3],
      [9000, 1],
      [17, 5000],
    ] as const) {
      const part = reduced(
        dtype,
        op,
        inputs.map((input) => viewBuffer(input, start, count)),
      );
      expect(part).toEqual(viewBuffer(whole, start, count));
    }
  });

  test.each(DTYPES)('%s: one input is returned bit for bit, NaN payloads too, by every op that it takes', (dtype) => {
    const input = allocateBuffer(dtype, 5);
    new Uint8Array(input.buffer).forEach((_byte, i, all) => (all[i] = 255 - i));
    for (const op of isFloatDType(dtype) ? floatOps : ops) {
      const result = reduced(dtype, op, [input]);
      expect(new Uint8Array(result.buffer)).toEqual(new Uint8Array(input.buffer));
    }
  });

  test('no input at all is a mistake of ours', () => {
    expect(() => reduceBuffers(new Float32Array(1), [], 'Sum')).toThrow(InternalError);
  });
});

/** Numbers without a pattern that a wrong index could hide behind. */
function irregular(dtype: DType, length: number, rank: number): HostBuffer {
  return storeValues(
    dtype,
    Float64Array.from({ length }, (_unused, i) => ((i * 7919 + rank * 104_729) % 1000) / 7 - 50),
  );
}
