/** Element types, and the host buffers that carry them: the class of a buffer is its dtype. */
import { isDeviceBuffer, type DeviceBuffer } from './device-buffer';
import { InvalidArgumentError } from './errors';
import { BFloat16Buffer, Float16Buffer, HALF_BRAND, type HalfDType } from './half-buffer';

export const DTYPES = ['float32', 'float64', 'float16', 'bfloat16', 'int8', 'uint8', 'int32', 'int64'] as const;
export type DType = (typeof DTYPES)[number];

export type { HalfDType };

/** A contiguous host buffer. */
export type HostBuffer =
  Float32Array | Float64Array | Float16Buffer | BFloat16Buffer | Int8Array | Uint8Array | Int32Array | BigInt64Array;

/** What collectives move; device buffers on backends whose capabilities name their device. */
export type DataBuffer = HostBuffer | DeviceBuffer;

/** The host buffer of each dtype. */
export interface BufferOf {
  float32: Float32Array;
  float64: Float64Array;
  float16: Float16Buffer;
  bfloat16: BFloat16Buffer;
  int8: Int8Array;
  uint8: Uint8Array;
  int32: Int32Array;
  int64: BigInt64Array;
}

interface BufferConstructor<B> {
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): B;
  new (buffer: ArrayBufferLike, byteOffset?: number, length?: number): B;
}

const CONSTRUCTORS: { readonly [D in DType]: BufferConstructor<BufferOf[D]> } = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Float16Buffer,
  bfloat16: BFloat16Buffer,
  int8: Int8Array,
  uint8: Uint8Array,
  int32: Int32Array,
  int64: BigInt64Array,
};

/** By the tag that Object.prototype.toString prints: unlike instanceof it works across realms (Jest, workers). */
const DTYPE_OF_TAG: Readonly<Record<string, DType>> = {
  '[object Float32Array]': 'float32',
  '[object Float64Array]': 'float64',
  '[object Int8Array]': 'int8',
  '[object Uint8Array]': 'uint8',
  '[object Int32Array]': 'int32',
  '[object BigInt64Array]': 'int64',
};

/** Bytes of one element. */
export function byteSize(dtype: DType): number {
  return CONSTRUCTORS[dtype].BYTES_PER_ELEMENT;
}

export function isFloatDType(dtype: DType): boolean {
  return dtype === 'float32' || dtype === 'float64' || dtype === 'float16' || dtype === 'bfloat16';
}

export function isHalfDType(dtype: DType): dtype is HalfDType {
  return dtype === 'float16' || dtype === 'bfloat16';
}

export function isDType(value: unknown): value is DType {
  return (DTYPES as readonly unknown[]).includes(value);
}

/** The dtype of a buffer, or undefined if `value` is not one that Lockstep takes. */
export function tryDTypeOf(value: unknown): DType | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const half = (value as { [HALF_BRAND]?: HalfDType })[HALF_BRAND];
  if (half !== undefined) return half;
  return DTYPE_OF_TAG[Object.prototype.toString.call(value)] ?? (isDeviceBuffer(value) ? value.dtype : undefined);
}

/**
 * The dtype of a buffer.
 * @throws InvalidArgumentError for anything that is not a buffer, with what to pass instead
 */
export function dtypeOf(value: unknown, what = 'buffer'): DType {
  const dtype = tryDTypeOf(value);
  if (dtype !== undefined) return dtype;
  throw new InvalidArgumentError(
    `${what}: expected a ${bufferNames()}, got ${describeValue(value)}.${adviceFor(value)}`,
  );
}

/** A zero-filled buffer of `length` elements. */
export function allocateBuffer<D extends DType>(dtype: D, length: number): BufferOf[D] {
  return new CONSTRUCTORS[dtype](length);
}

/** A view of `length` elements of `buffer` from element `start`; the same memory. */
export function viewBuffer<B extends HostBuffer>(buffer: B, start: number, length: number): B {
  const dtype = dtypeOf(buffer);
  const byteOffset = buffer.byteOffset + start * byteSize(dtype);
  return new CONSTRUCTORS[dtype](buffer.buffer, byteOffset, length) as unknown as B;
}

/** The memory of `buffer` as bytes; the same memory. */
export function bytesOf(buffer: HostBuffer): Uint8Array {
  return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

/** Copy all elements of `source` into `target` from element `targetStart`, bit for bit. Both have the same dtype. */
export function copyBuffer(target: HostBuffer, source: HostBuffer, targetStart = 0): void {
  (target as Uint8Array).set(source as Uint8Array, targetStart);
}

/** True if two buffers of one dtype and length hold the same bits. */
export function isSameBits(a: HostBuffer, b: HostBuffer): boolean {
  const bytes = bytesOf(b);
  return Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(bytes);
}

/** True if the memory of `buffer` was transferred away; such an array has length 0 and cannot be told from an empty one by length. */
export function isDetached(buffer: HostBuffer): boolean {
  if (buffer.byteLength !== 0) return false;
  try {
    new Uint8Array(buffer.buffer);
    return false;
  } catch {
    return true; // the constructor refuses a detached ArrayBuffer, and nothing else can fail here
  }
}

function bufferNames(): string {
  return DTYPES.map((dtype) => CONSTRUCTOR_NAMES[dtype]).join(', ');
}

const CONSTRUCTOR_NAMES: Readonly<Record<DType, string>> = {
  float32: 'Float32Array',
  float64: 'Float64Array',
  float16: 'Float16Buffer',
  bfloat16: 'BFloat16Buffer',
  int8: 'Int8Array',
  uint8: 'Uint8Array',
  int32: 'Int32Array',
  int64: 'BigInt64Array',
};

function describeValue(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value !== 'object') return `a ${typeof value}`;
  return Object.prototype.toString.call(value).slice('[object '.length, -1);
}

function adviceFor(value: unknown): string {
  const tag = Object.prototype.toString.call(value);
  if (tag === '[object Uint16Array]') {
    return (
      ' A plain Uint16Array does not say whether its bits are float16 or bfloat16: use Float16Buffer.fromBits(array) or' +
      ' BFloat16Buffer.fromBits(array). structuredClone and postMessage drop the class; wrap again on arrival.'
    );
  }
  if (tag === '[object Array]') return ' Make one with Float32Array.from(values).';
  return '';
}
