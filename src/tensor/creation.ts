/** Values made from what a caller gives: numbers, nested arrays, buffers, random generators. */
import { z } from 'zod';
import {
  allocateBuffer,
  copyBuffer,
  DTYPES,
  dtypeOf,
  isFloatDType,
  tryDTypeOf,
  type DType,
  type HostBuffer,
} from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { defaultGenerator, noteDraws } from '../core/random';
import { convertBuffer } from './operators/cast';
import { checkShape, formatShape, sizeOf, type Shape } from './shape';
import { Storage } from './storage';
import type { Value } from './value';

/** Numbers in arrays in arrays, all of one length at each depth. */
export type NestedArray = number | bigint | readonly NestedArray[];

/** What `Tensor.from` takes. */
export type TensorData = NestedArray | HostBuffer | ArrayLike<number> | ArrayLike<bigint>;

export interface LeafOptions {
  /** Whether backward() keeps a gradient for this tensor; floating point only. Default false. */
  readonly requiresGrad?: boolean | undefined;
}

export interface TensorOptions extends LeafOptions {
  /** Default: float32; `Tensor.from` keeps the dtype of a buffer, and makes int64 of bigints. */
  readonly dtype?: DType | undefined;
}

export interface RandomOptions extends TensorOptions {
  /** Default: the generator of this context, see `manualSeed`. */
  readonly generator?: Generator | undefined;
}

const tensorSchema = z.strictObject({
  dtype: z.enum(DTYPES).optional(),
  requiresGrad: z.boolean().optional(),
});
const randomSchema = tensorSchema.extend({ generator: z.instanceof(Generator).optional() });

export function parseTensorOptions(options: TensorOptions | undefined, what: string): TensorOptions {
  return options === undefined ? {} : parseOptions(tensorSchema, options, what);
}

export function parseRandomOptions(options: RandomOptions | undefined, what: string): RandomOptions {
  return options === undefined ? {} : parseOptions(randomSchema, options, what);
}

function storedValue(buffer: HostBuffer, shape: Shape, what: string): Value {
  if (sizeOf(shape) !== buffer.length) {
    throw new InvalidArgumentError(
      `${what}: ${buffer.length} elements do not fill shape ${formatShape(shape)}, which has ${sizeOf(shape)}.`,
    );
  }
  return { storage: Storage.of(buffer, 'other'), shape };
}

/** A buffer as a value, not copied. */
export function wrapBuffer(buffer: HostBuffer, shape: Shape | undefined, what: string): Value {
  dtypeOf(buffer, what);
  return storedValue(buffer, checkShape(shape ?? [buffer.length], what), what);
}

/** A copy of what the caller gives. */
export function valueOf(data: TensorData, shape: Shape | undefined, dtype: DType | undefined): Value {
  const what = 'Tensor.from';
  const ownDType = tryDTypeOf(data);
  if (ownDType !== undefined) {
    const buffer = data as HostBuffer;
    const source = Storage.of(buffer, 'other');
    return storedValue(copyOf(source, dtype ?? ownDType), checkShape(shape ?? [buffer.length], what), what);
  }
  if (ArrayBuffer.isView(data)) dtypeOf(data, what); // refuses it, with advice
  const found: (number | bigint)[] = [];
  const ownShape = flatten(data as NestedArray, found, []);
  return storedValue(bufferOf(found, dtype), checkShape(shape ?? ownShape, what), what);
}

function copyOf(source: Storage, dtype: DType): HostBuffer {
  if (dtype !== source.dtype) return convertBuffer(source, dtype);
  const copy = allocateBuffer(dtype, source.length);
  copyBuffer(copy, source.buffer);
  return copy;
}

/** Append the numbers of `data` to `found`, row major. @returns their shape */
function flatten(data: NestedArray, found: (number | bigint)[], path: readonly number[]): readonly number[] {
  if (typeof data === 'number' || typeof data === 'bigint') {
    found.push(data);
    return [];
  }
  if (typeof data !== 'object' || data === null || typeof (data as { length?: unknown }).length !== 'number') {
    throw new InvalidArgumentError(
      `Tensor.from: expected numbers, arrays of numbers or a typed array, got ${data === null ? 'null' : typeof data} at [${path.join('][')}].`,
    );
  }
  let inner: readonly number[] | undefined;
  for (let i = 0; i < data.length; i++) {
    const shape = flatten(data[i] as NestedArray, found, [...path, i]);
    if (inner !== undefined && formatShape(inner) !== formatShape(shape)) {
      throw new InvalidArgumentError(
        `Tensor.from: the arrays are ragged: element ${i} has shape ${formatShape(shape)}, those before it ${formatShape(inner)}.`,
      );
    }
    inner = shape;
  }
  return [data.length, ...(inner ?? [])];
}

/** @throws InvalidArgumentError for a number that an integer dtype does not hold */
function bufferOf(values: readonly (number | bigint)[], dtype: DType | undefined): HostBuffer {
  const isBig = values.length > 0 && values.every((value) => typeof value === 'bigint');
  const chosen = dtype ?? (isBig ? 'int64' : 'float32');
  if (chosen === 'int64') {
    values.forEach((value, index) => requireWhole(value, index, chosen));
    return BigInt64Array.from(values, BigInt);
  }
  const numbers = Float64Array.from(values, Number);
  const buffer = convertBuffer(Storage.of(numbers), chosen);
  if (isFloatDType(chosen)) return buffer;
  numbers.forEach((value, index) => {
    if (buffer[index] !== value) requireWhole(NaN, index, chosen, value);
  });
  return buffer;
}

function requireWhole(value: number | bigint, index: number, dtype: DType, shown = value): void {
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return;
  throw new InvalidArgumentError(`Tensor.from: element ${index} is ${String(shown)}, which ${dtype} does not hold.`);
}

/** All elements `fill`. */
export function fullValue(shape: Shape, fill: number | bigint, dtype: DType, what: string): Value {
  const checked = checkShape(shape, what);
  const size = sizeOf(checked);
  const buffer = allocateBuffer(dtype, size);
  if (Number(fill) !== 0 || Object.is(fill, -0)) buffer.fill(bufferOf([fill], dtype)[0] as never);
  return storedValue(buffer, checked, what);
}

/** Elements drawn one after the other, row major. */
export function drawnValue(
  shape: Shape,
  options: RandomOptions,
  draw: (generator: Generator) => number,
  what: string,
): Value {
  const { dtype = 'float32', generator = defaultGenerator() } = options;
  if (!isFloatDType(dtype)) throw new InvalidArgumentError(`${what}: expected a floating point dtype, got ${dtype}.`);
  const checked = checkShape(shape, what);
  noteDraws(generator);
  const numbers = new Float64Array(sizeOf(checked));
  for (let i = 0; i < numbers.length; i++) numbers[i] = draw(generator);
  const buffer = dtype === 'float64' ? numbers : convertBuffer(Storage.of(numbers), dtype);
  return storedValue(buffer, checked, what);
}
