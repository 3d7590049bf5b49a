/** Matchers for Jest and Vitest. */
import { bytesOf, byteSize, type DType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import {
  comparedArray,
  describeArray,
  describeIndex,
  hexBits,
  numbersOf,
  type ComparedArray,
  type TensorLike,
} from './compared-array';

/** How far apart two numbers may be: |received - expected| <= atol + rtol |expected|. */
export interface Tolerance {
  readonly rtol?: number | undefined;
  readonly atol?: number | undefined;
}

/**
 * What `expect(value)` has after `expect.extend(lockstepMatchers)`. TypeScript learns of it from a file of yours.
 * This package names neither test runner in its types, so that it compiles where only one of them is installed.
 *
 *     import type { LockstepMatchers } from 'lockstep/testing';
 *
 *     // Jest, with @types/jest
 *     declare global {
 *       namespace jest {
 *         interface Matchers<R, T> extends LockstepMatchers<R> {}
 *       }
 *     }
 *
 *     // Jest, with expect from @jest/globals
 *     declare module 'expect' {
 *       interface Matchers<R, T> extends LockstepMatchers<R> {}
 *     }
 *
 *     // Vitest
 *     declare module 'vitest' {
 *       interface Assertion<T> extends LockstepMatchers<void> {}
 *     }
 */
export interface LockstepMatchers<R = void> {
  /** Same dtype, shape and bits: 0 is not -0, and a NaN equals only the same NaN. Tensors or buffers. */
  toEqualBits(expected: TensorLike): R;
  /**
   * Same dtype and shape, and every element close. Tensors or buffers; NaN is close to NaN. Default tolerances are
   * those of torch.testing.assert_close for the dtype; integers have to be equal.
   */
  toBeCloseToTensor(expected: TensorLike, tolerance?: Tolerance): R;
}

/** What a matcher of Jest or Vitest returns. */
export interface MatcherResult {
  readonly pass: boolean;
  readonly message: () => string;
}

/** For `expect.extend(lockstepMatchers)`; types: see `LockstepMatchers`. */
export const lockstepMatchers = {
  toEqualBits(received: unknown, expected: TensorLike): MatcherResult {
    return compare('toEqualBits', 'bits', received, expected, bitDifferences);
  },

  toBeCloseToTensor(received: unknown, expected: TensorLike, tolerance: Tolerance = {}): MatcherResult {
    return compare('toBeCloseToTensor', 'values', received, expected, (a, b) => valueDifferences(a, b, tolerance));
  },
};

/** Which elements differ, and by what rule. */
interface Differences {
  readonly indices: readonly number[];
  readonly rule: string;
}

function compare(
  matcher: string,
  what: string,
  received: unknown,
  expected: unknown,
  differencesOf: (received: ComparedArray, expected: ComparedArray) => Differences,
): MatcherResult {
  const a = comparedArray(received);
  const b = comparedArray(expected);
  // Thrown: a result that says "fail" would let `.not` pass.
  if (a === undefined || b === undefined) {
    throw new InvalidArgumentError(`${matcher}: ${describeKind(a === undefined, received, expected)}`);
  }
  if (describeArray(a) !== describeArray(b)) {
    return failed(`${matcher}: expected ${describeArray(b)}, received ${describeArray(a)}.`);
  }
  const { indices, rule } = differencesOf(a, b);
  const [first] = indices;
  if (first === undefined) {
    return { pass: true, message: () => `${matcher}: expected other ${what}, but ${describeArray(a)} has the same.` };
  }
  const heading = `${matcher}: ${indices.length} of ${a.buffer.length} elements of ${describeArray(a)} differ${rule}.`;
  return failed([heading, `The first is ${describeIndex(a, first)}:`, ...elementLines(a, b, first)].join('\n'));
}

function failed(message: string): MatcherResult {
  return { pass: false, message: () => message };
}

function describeKind(isReceived: boolean, received: unknown, expected: unknown): string {
  const value = isReceived ? received : expected;
  const name = value === null || typeof value !== 'object' ? String(value) : Object.prototype.toString.call(value);
  const advice =
    name === '[object Uint16Array]' ? ' Bits of 16-bit floats go into a Float16Buffer or BFloat16Buffer.' : '';
  return `the ${isReceived ? 'received' : 'expected'} value has to be a tensor or a host buffer, got ${name}.${advice}`;
}

function elementLines(received: ComparedArray, expected: ComparedArray, index: number): string[] {
  const show = (array: ComparedArray): string => `${String(numbersOf(array)[index])}  ${hexBits(array, index)}`;
  return [`  expected: ${show(expected)}`, `  received: ${show(received)}`];
}

function bitDifferences(received: ComparedArray, expected: ComparedArray): Differences {
  const a = bytesOf(received.buffer);
  const b = bytesOf(expected.buffer);
  const indices: number[] = [];
  if (Buffer.compare(a, b) === 0) return { indices, rule: '' };
  const size = byteSize(received.dtype);
  for (let index = 0; index < received.buffer.length; index++) {
    const at = index * size;
    if (Buffer.compare(a.subarray(at, at + size), b.subarray(at, at + size)) !== 0) indices.push(index);
  }
  return { indices, rule: '' };
}

/** torch.testing.assert_close, table of default tolerances. */
const DEFAULT_TOLERANCES: Readonly<Partial<Record<DType, Required<Tolerance>>>> = {
  float64: { rtol: 1e-7, atol: 1e-7 },
  float32: { rtol: 1.3e-6, atol: 1e-5 },
  float16: { rtol: 1e-3, atol: 1e-5 },
  bfloat16: { rtol: 1.6e-2, atol: 1e-5 },
};

function valueDifferences(received: ComparedArray, expected: ComparedArray, tolerance: Tolerance): Differences {
  const defaults = DEFAULT_TOLERANCES[received.dtype] ?? { rtol: 0, atol: 0 };
  const { rtol = defaults.rtol, atol = defaults.atol } = tolerance;
  const a = numbersOf(received);
  const b = numbersOf(expected);
  const indices: number[] = [];
  let largest = 0;
  for (let index = 0; index < a.length; index++) {
    const x = a[index] as number | bigint;
    const y = b[index] as number | bigint;
    if (isClose(x, y, Number(rtol), Number(atol))) continue;
    indices.push(index);
    largest = Math.max(largest, Math.abs(Number(x) - Number(y)));
  }
  return { indices, rule: ` by more than ${atol} + ${rtol} |expected| (by ${largest} at most)` };
}

function isClose(received: number | bigint, expected: number | bigint, rtol: number, atol: number): boolean {
  if (received === expected) return true; // infinities, and integers too large for a double
  const a = Number(received);
  const b = Number(expected);
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) && Number.isNaN(b);
  if (!Number.isFinite(a) || !Number.isFinite(b)) return false;
  return typeof received === 'bigint' && rtol === 0 && atol === 0
    ? false
    : Math.abs(a - b) <= atol + rtol * Math.abs(b);
}
