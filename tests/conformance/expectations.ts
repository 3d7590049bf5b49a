/** Comparisons with messages that say which element of which rank is wrong. */
import type { WireError } from '../../src/core/error-wire';
import type { LockstepErrorCode } from '../../src/core/errors';
import type { DType } from '../../src/core/dtype';
import type { Ending } from './program';
import { valuesOf, type WireBuffer } from './wire-buffer';

type Value = number | bigint;

/**
 * Error that a backend may show whose reductions are not in rank order, relative to the magnitude of what was reduced, as terms
 * cancel; several roundings of the format.
 */
const TOLERANCE: Readonly<Partial<Record<DType, number>>> = {
  float32: 1e-5,
  float64: 1e-13,
  float16: 4e-3,
  bfloat16: 3e-2,
};

/**
 * @param magnitudes of the values, within a tolerance of which they may be wrong; undefined: they must be exact
 * @throws unless the buffer holds these values: NaN as any NaN, zeros by sign
 */
export function expectValues(
  where: string,
  got: WireBuffer | null | undefined,
  want: readonly Value[],
  magnitudes?: readonly number[],
): void {
  if (got === null || got === undefined) throw new Error(`${where}: there is no buffer`);
  const values = valuesOf(got);
  if (values.length !== want.length) throw new Error(`${where}: ${values.length} elements, expected ${want.length}`);
  const tolerance = TOLERANCE[got.dtype] ?? 0;
  const wrong = values.findIndex((value, i) => !isSame(value, want[i] as Value, tolerance * (magnitudes?.[i] ?? 0)));
  if (wrong < 0) return;
  throw new Error(`${where}: element ${wrong} of ${values.length} is ${values[wrong]}, expected ${want[wrong]}`);
}

function isSame(got: Value, want: Value, tolerance: number): boolean {
  if (Object.is(got, want)) return true;
  if (tolerance === 0 || typeof got !== 'number' || typeof want !== 'number') return false;
  return Math.abs(got - want) <= tolerance;
}

/** @throws unless all ranks hold the same bits */
export function expectSameBits(where: string, buffers: readonly WireBuffer[]): void {
  buffers.forEach((buffer, rank) => {
    if (buffer.base64 !== buffers[0]?.base64)
      throw new Error(`${where}: rank ${rank} does not hold the bits of rank 0`);
  });
}

/** @throws unless the two are equal as JSON */
export function expectEqual(where: string, got: unknown, want: unknown): void {
  const [gotText, wantText] = [JSON.stringify(got), JSON.stringify(want)];
  if (gotText !== wantText) throw new Error(`${where}: got ${gotText}, expected ${wantText}`);
}

/** What an error must be. */
export interface ExpectedError {
  /** One of these codes. */
  readonly code: LockstepErrorCode | readonly LockstepErrorCode[];
  /** Found in the message. */
  readonly says?: readonly RegExp[] | undefined;
  /** Found somewhere along its causes. */
  readonly cause?: { readonly code?: LockstepErrorCode; readonly says?: RegExp } | undefined;
}

/** @throws unless the call failed as expected; returns the error */
export function expectFailure(where: string, ending: Ending | undefined, expected: ExpectedError): WireError {
  if (ending === undefined) throw new Error(`${where}: there was no such call`);
  if (ending.ok) throw new Error(`${where}: the call succeeded, expected ${String(expected.code)}`);
  expectError(where, ending.error, expected);
  return ending.error;
}

export function expectError(where: string, error: WireError, { code, says = [], cause }: ExpectedError): void {
  const codes: readonly (string | null)[] = typeof code === 'string' ? [code] : code;
  if (!codes.includes(error.code)) {
    throw new Error(
      `${where}: expected ${codes.join(' or ')}, got ${error.name} (${error.code}): ${error.message}\n${error.stack}`,
    );
  }
  // A message that ends with a full stop was put into another one that has its own.
  if (/[^.]\.\.(?:\s|$)/.test(error.message)) throw new Error(`${where}: two full stops in a row: ${error.message}`);
  for (const pattern of says) {
    if (!pattern.test(error.message))
      throw new Error(`${where}: no ${String(pattern)} in the message: ${error.message}`);
  }
  if (cause !== undefined && !causesOf(error).some((link) => isCause(link, cause))) {
    throw new Error(
      `${where}: its causes are not as expected: ${JSON.stringify(causesOf(error).map(({ name, message }) => ({ name, message })))}`,
    );
  }
}

function causesOf(error: WireError): WireError[] {
  return error.cause === null ? [] : [error.cause, ...causesOf(error.cause)];
}

function isCause(error: WireError, expected: NonNullable<ExpectedError['cause']>): boolean {
  return (expected.code === undefined || error.code === expected.code) && (expected.says?.test(error.message) ?? true);
}

/** @throws unless the call succeeded */
export function expectSuccess(where: string, ending: Ending | undefined): void {
  if (ending === undefined) throw new Error(`${where}: there was no such call`);
  if (!ending.ok) throw new Error(`${where}: ${ending.error.name}: ${ending.error.message}`);
}
