import { InvalidArgumentError } from '../core/errors';
import { stack } from '../tensor/functional';
import { Tensor } from '../tensor/tensor';

/** What a list of samples of type T becomes: tensors stacked, inside tuples and objects too. */
export type Collated<T> = T extends Tensor | number
  ? Tensor
  : T extends readonly unknown[]
    ? { -readonly [K in keyof T]: Collated<T[K]> }
    : T extends object
      ? { -readonly [K in keyof T]: Collated<T[K]> }
      : never;

/**
 * Join samples to a batch: tensors are stacked along a new first dimension, numbers become one float32 tensor, and
 * arrays and plain objects are joined element by element.
 *
 * Class indices have to be int32: give them as tensors (`Tensor.full([], label, { dtype: 'int32' })`) or through a
 * TensorDataset.
 * @throws InvalidArgumentError for samples of anything else, or that differ in shape or form
 */
export function collate<T>(samples: readonly T[]): Collated<T> {
  return join(samples, 'sample') as Collated<T>;
}

function join(parts: readonly unknown[], path: string): unknown {
  const [first] = parts;
  if (parts.every((part) => part instanceof Tensor)) return stackAt(parts, path);
  if (parts.every((part) => typeof part === 'number')) return Tensor.wrap(Float32Array.from(parts));
  if (parts.every((part) => Array.isArray(part) && part.length === (first as unknown[]).length)) {
    const rows = parts as readonly (readonly unknown[])[];
    return (first as unknown[]).map((_item, i) => join(rows.map((row) => row[i]), `${path}[${i}]`));
  }
  if (parts.every((part) => isPlainObject(part))) {
    const records = parts as readonly Readonly<Record<string, unknown>>[];
    const keys = Object.keys(records[0] as object);
    return Object.fromEntries(keys.map((key) => [key, join(records.map((record) => record[key]), `${path}.${key}`)]));
  }
  const kinds = [...new Set(parts.map((part) => Object.prototype.toString.call(part).slice('[object '.length, -1)))];
  throw new InvalidArgumentError(
    `collate: expected tensors, numbers, or arrays or objects of them, alike in every sample, got ${kinds.join(' and ')} ` +
      `at ${path}. Pass a collate function of your own.`,
  );
}

function stackAt(tensors: readonly Tensor[], path: string): Tensor {
  try {
    return stack(tensors);
  } catch (error) {
    throw new InvalidArgumentError(`collate: at ${path}: ${(error as Error).message}`, { cause: error });
  }
}

function isPlainObject(value: unknown): boolean {
  return Object.prototype.toString.call(value) === '[object Object]' && !(value instanceof Tensor);
}
