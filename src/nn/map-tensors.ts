import { Tensor } from '../tensor/tensor';

/**
 * `value`, the input or output of a module, with `fn` applied to its tensors: itself, or those inside arrays and plain
 * objects, which are rebuilt. Anything else is kept as it is. A tensor that occurs twice is replaced by one tensor.
 */
export function mapTensors<T>(value: T, fn: (tensor: Tensor) => Tensor, done = new Map<Tensor, Tensor>()): T {
  if (value instanceof Tensor) {
    const replacement = done.get(value) ?? fn(value);
    done.set(value, replacement);
    return replacement as T & Tensor;
  }
  if (Array.isArray(value)) return value.map((item: unknown) => mapTensors(item, fn, done)) as T & unknown[];
  if (!isPlainObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapTensors(item, fn, done)])) as T &
    object;
}

function isPlainObject(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}
