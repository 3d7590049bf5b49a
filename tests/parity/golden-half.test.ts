import { createHash } from 'node:crypto';
import { BFloat16Buffer, Float16Buffer } from '../../src/core/half-buffer';
import {
  float32BitsToBFloat16,
  float32BitsToFloat16,
  toFloat16Bits,
  widenBFloat16,
  widenFloat16,
} from '../../src/core/half';
import { readGolden } from '../helpers/golden';

type Bits = number | 'NaN';

interface HalfGolden {
  readonly float32Bits: readonly number[];
  readonly float16Bits: readonly Bits[];
  readonly bfloat16Bits: readonly Bits[];
  readonly back: Readonly<Record<'float16' | 'bfloat16', { bits: readonly number[]; float32: readonly Bits[] }>>;
  readonly digests: {
    readonly float16ToFloat32: string;
    readonly bfloat16ToFloat32: string;
    readonly lcgSeed: number;
    readonly lcgCount: number;
    readonly float32ToFloat16: string;
    readonly float32ToBfloat16: string;
  };
  readonly float16FromDouble: readonly { value: number; direct: number; throughFloat32: number }[];
}

const golden = readGolden<HalfGolden>('half.json');

const formats = [
  {
    format: 'float16',
    Buffer: Float16Buffer,
    infinity: 0x7c00,
    narrow: float32BitsToFloat16,
    narrowed: golden.float16Bits,
    widen: widenFloat16,
    wideDigest: golden.digests.float16ToFloat32,
    narrowDigest: golden.digests.float32ToFloat16,
    digestNaN: 0x7e00,
  },
  {
    format: 'bfloat16',
    Buffer: BFloat16Buffer,
    infinity: 0x7f80,
    narrow: float32BitsToBFloat16,
    narrowed: golden.bfloat16Bits,
    widen: widenBFloat16,
    wideDigest: golden.digests.bfloat16ToFloat32,
    narrowDigest: golden.digests.float32ToBfloat16,
    digestNaN: 0x7fc0,
  },
] as const;

const float32FromBits = (bits: ArrayLike<number>): Float32Array => new Float32Array(Uint32Array.from(bits).buffer);

/** SHA-256 of the numbers in little-endian order, which is that of every platform Node runs on. */
const digest = (table: Uint16Array | Uint32Array): string =>
  createHash('sha256').update(new Uint8Array(table.buffer)).digest('hex');

describe.each(formats)('$format golden vectors', (golden16) => {
  const { format, Buffer, infinity, narrow, narrowed, widen, wideDigest, narrowDigest, digestNaN } = golden16;
  const isNaN16 = (bits: number): boolean => (bits & 0x7fff) > infinity;

  test('every float32 pattern rounds to the bits of the vector, NaN to a NaN', () => {
    expect(golden.float32Bits.length).toBeGreaterThan(1000);
    const got = golden.float32Bits.map(narrow).map((bits): Bits => (isNaN16(bits) ? 'NaN' : bits));
    expect(got).toEqual(narrowed);
  });

  test('Buffer.from gives the same bits as the scalar conversion', () => {
    const values = float32FromBits(golden.float32Bits);
    const got = [...Buffer.from(values)].map((bits): Bits => (isNaN16(bits) ? 'NaN' : bits));
    expect(got).toEqual(narrowed);
  });

  test('every 16-bit pattern widens to the bits of the vector, NaN to a NaN', () => {
    const { bits, float32 } = golden.back[format];
    const wide = Buffer.fromBits(bits).toFloat32();
    const wideBits = new Uint32Array(wide.buffer);
    const got = Array.from(wide, (value, i): Bits => (Number.isNaN(value) ? 'NaN' : (wideBits[i] as number)));
    expect(got).toEqual(float32);
  });

  test('the table of all 65,536 widened patterns has the digest of the vector', () => {
    const wide = new Float32Array(65536);
    widen(
      Uint16Array.from({ length: 65536 }, (_unused, bits) => bits),
      wide,
    );
    const bits = new Uint32Array(wide.buffer);
    wide.forEach((value, i) => {
      if (Number.isNaN(value)) bits[i] = 0x7fc00000;
    });
    expect(digest(bits)).toBe(wideDigest);
  });

  test('the table of pseudo-random float32 patterns has the digest of the vector', () => {
    const { lcgSeed, lcgCount } = golden.digests;
    const table = new Uint16Array(lcgCount);
    let pattern = lcgSeed;
    for (let i = 0; i < lcgCount; i++) {
      pattern = (Math.imul(1664525, pattern) + 1013904223) >>> 0;
      const bits = narrow(pattern);
      table[i] = isNaN16(bits) ? digestNaN : bits;
    }
    expect(digest(table)).toBe(narrowDigest);
  });
});

test('doubles round to float16 by way of float32, as documented', () => {
  const got = golden.float16FromDouble.map(({ value }) => toFloat16Bits(value));
  expect(got).toEqual(golden.float16FromDouble.map(({ throughFloat32 }) => throughFloat32));
  expect(got).not.toEqual(golden.float16FromDouble.map(({ direct }) => direct));
});
