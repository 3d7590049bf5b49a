import { InvalidArgumentError } from '../core/errors';
import type { JsonValue } from './state-parts';

/**
 * A copy of `value`. NaN and infinite numbers stay as they are: who writes them must see to it.
 * @param what names the value in messages, as `scheduler`
 * @throws InvalidArgumentError naming the first path with something that JSON does not hold
 */
export function checkedJson(value: unknown, what: string): JsonValue {
  if (value === null || typeof value === 'boolean' || typeof value === 'number' || typeof value === 'string') {
    return value;
  }
  // Array.from, as `map` passes over holes
  if (Array.isArray(value)) return Array.from(value, (item, index) => checkedJson(item, `${what}[${index}]`));
  if (isPlainObject(value)) {
    const fields = Object.entries(value);
    return Object.fromEntries(fields.map(([key, field]) => [key, checkedJson(field, `${what}.${key}`)]));
  }
  const got = typeof value === 'object' ? Object.prototype.toString.call(value).slice(8, -1) : typeof value;
  throw new InvalidArgumentError(
    `${what}: expected plain data (numbers, text, booleans, null, and arrays and objects of these), got ${got === 'undefined' ? got : `a ${got}`}.`,
  );
}

function isPlainObject(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  // the prototype of an object of another realm is not Object.prototype, but has none above it either
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
