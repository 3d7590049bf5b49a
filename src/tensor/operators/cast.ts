import { allocateBuffer, isFloatDType, tryDTypeOf, type DType, type HostBuffer } from '../../core/dtype';
import { narrowToBFloat16, narrowToFloat16 } from '../../core/half';
import type { Numbers } from '../kernels/kernels';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { floatsOf } from './floats';

/**
 * Elements of `storage` as a new buffer of `dtype`. Floats become integers by dropping the fraction (NaN and infinities
 * become 0); integers wrap.
 */
export function convertBuffer(storage: Storage, dtype: DType): HostBuffer {
  const source = isFloatDType(storage.dtype) ? floatsOf(storage) : (storage.buffer as Int32Array | BigInt64Array);
  const target = allocateBuffer(dtype, storage.length);
  switch (dtype) {
    case 'int64':
      for (let i = 0; i < source.length; i++) (target as BigInt64Array)[i] = toBigInt(source[i] as number | bigint);
      return target;
    case 'float16':
      narrowToFloat16(float32Of(source), target as Uint16Array);
      return target;
    case 'bfloat16':
      narrowToBFloat16(float32Of(source), target as Uint16Array);
      return target;
    default:
      for (let i = 0; i < source.length; i++) (target as Float64Array)[i] = Number(source[i]);
      return target;
  }
}

function float32Of(source: Numbers | BigInt64Array): Float32Array {
  if (tryDTypeOf(source) === 'float32') return source as Float32Array;
  const rounded = new Float32Array(source.length);
  for (let i = 0; i < source.length; i++) rounded[i] = Number(source[i]);
  return rounded;
}

function toBigInt(value: number | bigint): bigint {
  if (typeof value === 'bigint') return value;
  return Number.isFinite(value) ? BigInt(Math.trunc(value)) : 0n;
}

/** x in another dtype; the gradient is cast back. */
export function cast(x: Value, dtype: DType): Result {
  const from = x.storage.dtype;
  const convert = (value: Value, to: DType): Value => ({
    storage: Storage.of(convertBuffer(value.storage, to)),
    shape: value.shape,
  });
  return {
    output: convert(x, dtype),
    saves: [],
    backward: isFloatDType(dtype) ? (gradient) => [convert(gradient, from)] : undefined,
  };
}
