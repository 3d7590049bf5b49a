/** NaNs of many bits. */
import type { DType, HostBuffer } from '../../src/core/dtype';
import { BFloat16Buffer, Float16Buffer } from '../../src/core/half-buffer';

export const FLOAT_DTYPES = ['float32', 'float64', 'float16', 'bfloat16'] as const satisfies readonly DType[];
export type FloatDType = (typeof FLOAT_DTYPES)[number];

/** In hexadecimal, the highest digit first. */
export const CANONICAL_NAN: Readonly<Record<FloatDType, string>> = {
  float32: '7fc00000',
  float64: '7ff8000000000000',
  float16: '7e00',
  bfloat16: '7fc0',
};

/** Of both signs and several payloads, quiet and signalling; then what may make NaN: infinities, zero; and one. */
const SPECIAL: Readonly<Record<FloatDType, readonly bigint[]>> = {
  float32: [0x7fc00000n, 0xffc00000n, 0x7fc12345n, 0xffffffffn, 0x7f800001n, 0x7f800000n, 0xff800000n, 0n, 0x3f800000n],
  float64: [
    0x7ff8000000000000n,
    0xfff8000000000000n,
    0x7ff8123456789abcn,
    0xffffffffffffffffn,
    0x7ff0000000000001n,
    0x7ff0000000000000n,
    0xfff0000000000000n,
    0n,
    0x3ff0000000000000n,
  ],
  float16: [0x7e00n, 0xfe00n, 0x7e12n, 0xffffn, 0x7c01n, 0x7c00n, 0xfc00n, 0n, 0x3c00n],
  bfloat16: [0x7fc0n, 0xffc0n, 0x7fd2n, 0xffffn, 0x7f81n, 0x7f80n, 0xff80n, 0n, 0x3f80n],
};

/** Buffers of one element each. */
export function specialNumbers(dtype: DType): HostBuffer[] {
  return SPECIAL[dtype as FloatDType].map((bits) => withBits(dtype as FloatDType, bits));
}

/** A buffer of one element with these bits. */
export function withBits(dtype: FloatDType, bits: bigint): HostBuffer {
  switch (dtype) {
    case 'float32':
      return new Float32Array(Uint32Array.of(Number(bits)).buffer);
    case 'float64':
      return new Float64Array(BigUint64Array.of(bits).buffer);
    case 'float16':
      return Float16Buffer.fromBits(Uint16Array.of(Number(bits)));
    case 'bfloat16':
      return BFloat16Buffer.fromBits(Uint16Array.of(Number(bits)));
  }
}
