/** Values with a closed form, so that an element that comes from the wrong rank or place cannot pass. */
import { allocateBuffer, type DType, type HostBuffer } from '../../src/core/dtype';
import { BFloat16Buffer, Float16Buffer } from '../../src/core/half-buffer';

/** 'counted': `i * size + rank`, wrapped where the dtype would round it. 'rounding': sums depend on order and format. */
export type Fill = 'counted' | 'rounding';

/** Below these all whole numbers are exact. */
const EXACT_BELOW: Readonly<Record<DType, number>> = {
  float32: 2 ** 24,
  float64: 2 ** 53,
  float16: 2 ** 11,
  bfloat16: 2 ** 8,
  int8: 2 ** 7,
  uint8: 2 ** 8,
  int32: 2 ** 31,
  int64: 2 ** 53,
};

/** The value of element `i` of rank `rank`, before it is stored. */
export function fillValue(fill: Fill, dtype: DType, size: number, rank: number, i: number): number {
  if (fill === 'counted') return (i * size + rank) % EXACT_BELOW[dtype];
  const mantissa = ((i * 7919 + rank * 104_729) % 2003) - 1001;
  return (mantissa / 7) * 2 ** ((i + 3 * rank) % 9);
}

/** `count` elements of rank `rank`, beginning with element `start`. */
export function filled(
  dtype: DType,
  count: number,
  size: number,
  rank: number,
  fill: Fill = 'counted',
  start = 0,
): HostBuffer {
  const values = Float64Array.from({ length: count }, (_unused, i) => fillValue(fill, dtype, size, rank, start + i));
  return storeValues(dtype, values);
}

/** Numbers as a buffer; integers are truncated, 16-bit floats rounded. */
export function storeValues(dtype: DType, values: ArrayLike<number>): HostBuffer {
  switch (dtype) {
    case 'float16':
      return Float16Buffer.from(values);
    case 'bfloat16':
      return BFloat16Buffer.from(values);
    case 'int64':
      return BigInt64Array.from(Array.from(values), (value) => BigInt(Math.trunc(value)));
    default: {
      const buffer = allocateBuffer(dtype, values.length);
      buffer.set(values);
      return buffer;
    }
  }
}

/** What a buffer holds where nothing has been written yet. */
export const UNTOUCHED = 99;

/** A buffer of `count` elements that a collective should overwrite. */
export function untouched(dtype: DType, count: number): HostBuffer {
  return storeValues(dtype, new Float64Array(count).fill(UNTOUCHED));
}
