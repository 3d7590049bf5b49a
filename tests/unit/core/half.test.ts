import fc from 'fast-check';
import { bfloat16Value, float16Value, roundToBFloat16, roundToFloat16 } from '../../helpers/rounding';
import { holds } from '../../helpers/property';
import {
  float16BitsToFloat32Bits,
  float32BitsToBFloat16,
  float32BitsToFloat16,
  fromBFloat16Bits,
  fromFloat16Bits,
  narrowToBFloat16,
  narrowToFloat16,
  toBFloat16Bits,
  toFloat16Bits,
  widenBFloat16,
  widenFloat16,
} from '../../../src/core/half';

const allPatterns = Uint16Array.from({ length: 65536 }, (_unused, bits) => bits);

describe('float16', () => {
  test('every one of the 65,536 patterns has the value that the format defines', () => {
    const wide = new Float32Array(65536);
    widenFloat16(allPatterns, wide);
    const wrong = allPatterns.filter(
      (bits) => !Object.is(fromFloat16Bits(bits), float16Value(bits)) || !Object.is(wide[bits], float16Value(bits)),
    );
    expect([...wrong]).toEqual([]);
  });

  test('every pattern that is not NaN survives the way to float32 and back; NaN stays NaN', () => {
    const wrong = allPatterns.filter((bits) => {
      const back = float32BitsToFloat16(float16BitsToFloat32Bits(bits));
      return Number.isNaN(float16Value(bits)) ? !Number.isNaN(float16Value(back)) : back !== bits;
    });
    expect([...wrong]).toEqual([]);
  });

  test.each([
    ['the largest number', 65504, 0x7bff],
    ['a number that rounds down to the largest', 65519.996, 0x7bff],
    ['the tie above the largest, which goes to infinity', 65520, 0x7c00],
    ['far too much', 1e30, 0x7c00],
    ['negative infinity', -Infinity, 0xfc00],
    ['negative zero', -0, 0x8000],
    ['the smallest subnormal', 2 ** -24, 0x0001],
    ['half of it, a tie to even zero', 2 ** -25, 0x0000],
    ['a little more than half of it', 2 ** -25 * 1.0001, 0x0001],
    ['one and a half of it, a tie to even two', 1.5 * 2 ** -24, 0x0002],
    ['the largest subnormal', 1023 * 2 ** -24, 0x03ff],
    ['a subnormal that rounds up to the smallest normal', 1023.5 * 2 ** -24, 0x0400],
    ['2048 + 1, a tie to even', 2049, 0x6800],
    ['2048 + 3, a tie to even', 2051, 0x6802],
  ])('%s', (_what, value, bits) => {
    expect(toFloat16Bits(value)).toBe(bits);
  });

  test('numbers of every magnitude round as the arithmetic definition says', () => {
    holds(
      'float16 rounding',
      fc.property(fc.float({ noNaN: true }), (value) => {
        expect(float16Value(toFloat16Bits(value))).toBe(roundToFloat16(value));
      }),
      { short: 2000, long: 30_000 },
    );
  });

  test('numbers within the range of float16, ties among them, round as the arithmetic definition says', () => {
    holds(
      'float16 rounding near ties',
      fc.property(fc.integer({ min: 0, max: 0x7bff }), fc.constantFrom(0, 0.25, 0.5, 0.75), (bits, part) => {
        const value = float16Value(bits) + part * (float16Value(bits + 1) - float16Value(bits));
        if (Number.isFinite(value)) expect(float16Value(toFloat16Bits(value))).toBe(roundToFloat16(value));
      }),
      { short: 2000, long: 30_000 },
    );
  });
});

describe('bfloat16', () => {
  test('every one of the 65,536 patterns has the value that the format defines', () => {
    const wide = new Float32Array(65536);
    widenBFloat16(allPatterns, wide);
    const wrong = allPatterns.filter(
      (bits) => !Object.is(fromBFloat16Bits(bits), bfloat16Value(bits)) || !Object.is(wide[bits], bfloat16Value(bits)),
    );
    expect([...wrong]).toEqual([]);
  });

  test.each([
    ['one', 1, 0x3f80],
    ['256 + 1, a tie to even', 257, 0x4380],
    ['256 + 3, a tie to even', 259, 0x4382],
    ['the largest float32, which goes to infinity', 3.4028234663852886e38, 0x7f80],
    ['the smallest subnormal', 2 ** -133, 0x0001],
    ['half of it, a tie to even zero', 2 ** -134, 0x0000],
    ['negative zero', -0, 0x8000],
    ['negative infinity', -Infinity, 0xff80],
  ])('%s', (_what, value, bits) => {
    expect(toBFloat16Bits(value)).toBe(bits);
  });

  test('numbers of every magnitude round as the arithmetic definition says', () => {
    holds(
      'bfloat16 rounding',
      fc.property(fc.float({ noNaN: true }), (value) => {
        expect(bfloat16Value(toBFloat16Bits(value))).toBe(roundToBFloat16(value));
      }),
      { short: 2000, long: 30_000 },
    );
  });

  test('ties round as the arithmetic definition says', () => {
    holds(
      'bfloat16 rounding near ties',
      fc.property(fc.integer({ min: 0, max: 0x7f7f }), fc.constantFrom(0, 0.25, 0.5, 0.75), (bits, part) => {
        const value = bfloat16Value(bits) + part * (bfloat16Value(bits + 1) - bfloat16Value(bits));
        if (Number.isFinite(value)) expect(bfloat16Value(toBFloat16Bits(value))).toBe(roundToBFloat16(value));
      }),
      { short: 2000, long: 30_000 },
    );
  });

  test('a NaN whose payload is all in the lower half does not become infinity', () => {
    expect(float32BitsToBFloat16(0x7f800001)).toBe(0x7fc0);
    expect(float32BitsToBFloat16(0xff800001)).toBe(0xffc0);
    expect(float32BitsToFloat16(0x7f800001)).toBe(0x7e00);
    expect(float32BitsToFloat16(0xff800001)).toBe(0xfe00);
  });
});

test('a JavaScript number is rounded to float32 first, then to 16 bits, as torch does', () => {
  const aboveTie = 1 + 2 ** -11 + 2 ** -40; // above a float16 tie, but float32 rounds it onto the tie
  expect(fromFloat16Bits(toFloat16Bits(aboveTie))).toBe(1);
});

test('the bulk conversions respect where their views begin and end', () => {
  const wide = new Float32Array(6).fill(9);
  widenBFloat16(Uint16Array.of(0x3f80, 0x4000), wide.subarray(2, 4));
  expect([...wide]).toEqual([9, 9, 1, 2, 9, 9]);
  const narrow = new Uint16Array(4).fill(7);
  narrowToFloat16(wide.subarray(2, 4), narrow.subarray(1, 3));
  expect([...narrow]).toEqual([7, 0x3c00, 0x4000, 7]);
  narrowToBFloat16(wide.subarray(2, 4), narrow.subarray(2, 4));
  expect([...narrow]).toEqual([7, 0x3c00, 0x3f80, 0x4000]);
});
