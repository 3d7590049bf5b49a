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

/** A tensor that `mapTensors` does not see. */
export interface HiddenTensor {
  readonly tensor: Tensor;
  /** What hides it: the name of a class. */
  readonly holder: string;
}

/**
 * The first tensor for which `isWanted` holds, of those in `value` that `mapTensors` passes over: inside Maps, Sets and
 * instances of classes, as far as their enumerable properties show them.
 * @param passed objects that are not looked into; those that were are added
 */
export function findHiddenTensor(
  value: unknown,
  isWanted: (tensor: Tensor) => boolean,
  passed: Set<unknown> = new Set(),
): HiddenTensor | undefined {
  if (typeof value !== 'object' || value === null || value instanceof Tensor) return undefined;
  const isSeen = Array.isArray(value) || isPlainObject(value);
  const tensor = isSeen ? undefined : findInside(value, isWanted, passed);
  if (tensor !== undefined) return { tensor, holder: classOf(value) };
  if (!isSeen) return undefined;
  for (const item of Array.isArray(value) ? (value as unknown[]) : Object.values(value)) {
    const found = findHiddenTensor(item, isWanted, passed);
    if (found !== undefined) return found;
  }
  return undefined;
}

function findInside(value: unknown, isWanted: (tensor: Tensor) => boolean, passed: Set<unknown>): Tensor | undefined {
  if (value instanceof Tensor) return isWanted(value) ? value : undefined;
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value) || passed.has(value)) return undefined;
  passed.add(value);
  const isIterable = Array.isArray(value) || value instanceof Map || value instanceof Set;
  for (const part of isIterable ? (value as Iterable<unknown>) : Object.values(value)) {
    const found = findInside(part, isWanted, passed);
    if (found !== undefined) return found;
  }
  return undefined;
}

function classOf(value: object): string {
  const { constructor } = value as { readonly constructor?: unknown };
  return typeof constructor === 'function' && constructor.name !== '' ? constructor.name : 'object without a class';
}

function isPlainObject(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}
