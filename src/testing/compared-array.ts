/** What the matchers compare: a tensor or a bare buffer, seen alike. */
import { allocateBuffer, bytesOf, byteSize, isDType, tryDTypeOf, type DType, type HostBuffer } from '../core/dtype';
import type { BFloat16Buffer, Float16Buffer } from '../core/half-buffer';

/** A tensor, or a host buffer (then its shape is [length]). */
export type TensorLike =
  HostBuffer | { readonly shape: readonly number[]; readonly dtype: DType; readonly data: HostBuffer };

export interface ComparedArray {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly buffer: HostBuffer;
}

/** Undefined for anything that is neither a tensor nor a buffer. */
export function comparedArray(value: unknown): ComparedArray | undefined {
  const dtype = tryDTypeOf(value);
  if (dtype !== undefined) {
    const buffer = value as HostBuffer;
    return { dtype, shape: [buffer.length], buffer };
  }
  if (typeof value !== 'object' || value === null) return undefined;
  const { shape, dtype: named, data } = value as { shape?: unknown; dtype?: unknown; data?: unknown };
  if (!Array.isArray(shape) || !isDType(named) || tryDTypeOf(data) !== named) return undefined;
  return { dtype: named, shape: shape as readonly number[], buffer: data as HostBuffer };
}

/** The numbers of a buffer: bigint for int64, else number. */
export function numbersOf({ dtype, buffer }: ComparedArray): ArrayLike<number> | ArrayLike<bigint> {
  if (dtype === 'float16' || dtype === 'bfloat16') return (buffer as Float16Buffer | BFloat16Buffer).toFloat32();
  return buffer;
}

/** The bits of one element, as `0x3f800000`. */
export function hexBits({ dtype, buffer }: ComparedArray, index: number): string {
  const size = byteSize(dtype);
  const element = bytesOf(buffer).subarray(index * size, (index + 1) * size);
  const bytes = isLittleEndian() ? [...element].reverse() : [...element];
  return `0x${bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')}`;
}

function isLittleEndian(): boolean {
  const probe = allocateBuffer('int32', 1);
  probe[0] = 1;
  return bytesOf(probe)[0] === 1;
}

/** As `float32 [2, 3]`. */
export function describeArray({ dtype, shape }: ComparedArray): string {
  return `${dtype} [${shape.join(', ')}]`;
}

/** As `element 5, at [1, 2]`. */
export function describeIndex({ shape }: ComparedArray, index: number): string {
  if (shape.length < 2) return `element ${index}`;
  const position: number[] = [];
  let rest = index;
  for (const size of [...shape].reverse()) {
    position.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return `element ${index}, at [${position.join(', ')}]`;
}
