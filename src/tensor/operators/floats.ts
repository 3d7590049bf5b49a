/** Between stored elements and the arrays that floating point kernels compute on. */
import { allocateBuffer, isFloatDType, type DType } from '../../core/dtype';
import { InvalidArgumentError } from '../../core/errors';
import { narrowToBFloat16, narrowToFloat16, widenBFloat16, widenFloat16 } from '../../core/half';
import type { Floats } from '../kernels/kernels';
import { sizeOf, type Shape } from '../shape';
import { Storage } from '../storage';
import type { Value } from '../value';

/** The elements as floats: the memory itself for float32 and float64, a widened copy for the 16-bit types. */
export function floatsOf(storage: Storage): Floats {
  switch (storage.dtype) {
    case 'float32':
    case 'float64':
      return storage.buffer as Floats;
    case 'float16':
    case 'bfloat16': {
      const wide = new Float32Array(storage.length);
      const widen = storage.dtype === 'float16' ? widenFloat16 : widenBFloat16;
      widen(storage.buffer as Uint16Array, wide);
      return wide;
    }
    default:
      throw new InvalidArgumentError(`expected a floating point tensor, got ${storage.dtype}.`);
  }
}

/** An array to compute a result of `dtype` in: zeros, float64 for float64, otherwise float32. */
export function floatsFor(dtype: DType, size: number): Floats {
  return dtype === 'float64' ? new Float64Array(size) : new Float32Array(size);
}

/** The computed elements as a value of `dtype`; 16-bit types are rounded here, once. */
export function valueFrom(floats: Floats, dtype: DType, shape: Shape): Value {
  if (dtype !== 'float16' && dtype !== 'bfloat16') return { storage: Storage.of(floats), shape };
  const storage = Storage.allocate(dtype, floats.length);
  const narrow = dtype === 'float16' ? narrowToFloat16 : narrowToBFloat16;
  narrow(floats as Float32Array, storage.buffer as Uint16Array);
  return { storage, shape };
}

/** Compute a value of `dtype` and `shape` by filling zeros. */
export function computeValue(dtype: DType, shape: Shape, fill: (out: Floats) => void): Value {
  const out = floatsFor(dtype, sizeOf(shape));
  fill(out);
  return valueFrom(out, dtype, shape);
}

/** @throws InvalidArgumentError unless `value` has a floating point dtype */
export function requireFloat(what: string, value: Value): void {
  const { dtype } = value.storage;
  if (isFloatDType(dtype)) return;
  throw new InvalidArgumentError(
    `${what}: expected a floating point tensor, got ${dtype}. Convert it with .to('float32') first.`,
  );
}

/** @throws InvalidArgumentError unless both have one dtype: nothing is converted silently */
export function requireSameDType(what: string, a: Value, b: Value): void {
  const left = a.storage.dtype;
  const right = b.storage.dtype;
  if (left === right) return;
  throw new InvalidArgumentError(
    `${what}: the dtypes ${left} and ${right} differ. Nothing is converted silently: call .to('${left}') or .to('${right}') on one of them.`,
  );
}

/** A zero-filled value. */
export function zerosValue(dtype: DType, shape: Shape): Value {
  return { storage: Storage.of(allocateBuffer(dtype, sizeOf(shape))), shape };
}
