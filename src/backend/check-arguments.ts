/** What all calls' arguments have in common: buffers, ranks, counts, options. Each check throws InvalidArgumentError. */
import { checkTimeout } from '../core/deadline';
import { byteSize, dtypeOf, isDetached, type DataBuffer, type DType, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError, UnsupportedError } from '../core/errors';
import { checkReduceOp, type ReduceOp } from '../core/reduce-op';
import type { BackendCapabilities, CallOptions } from './backend';
import type { CollectiveCall } from './call';
import type { Counts } from './parts';

/** The rank that calls, and its group. */
export interface Caller {
  readonly rank: number;
  readonly size: number;
  /** For calls that name no timeout. */
  readonly timeoutMs: number;
  /** False: all-reduces may reduce in another order than rank order; default true. */
  readonly deterministic?: boolean | undefined;
  readonly capabilities: BackendCapabilities;
}

export function checkBuffer(caller: Caller, buffer: unknown, what: string, expected?: DType): DType {
  const dtype = dtypeOf(buffer, what);
  if (isDetached(buffer as HostBuffer)) {
    throw new InvalidArgumentError(
      `${what}: the buffer is detached: its memory was transferred to a worker or by structuredClone. Pass a live one.`,
    );
  }
  if (expected !== undefined && dtype !== expected) {
    throw new InvalidArgumentError(`${what}: expected ${expected} like the other buffer of this call, got ${dtype}.`);
  }
  if (!caller.capabilities.dtypes.includes(dtype)) {
    throw new UnsupportedError(`${what}: this backend moves ${caller.capabilities.dtypes.join(', ')}, not ${dtype}.`);
  }
  return dtype;
}

export function checkOp(caller: Caller, op: ReduceOp, dtype: DType): ReduceOp {
  const checked = checkReduceOp(op, dtype);
  if (!caller.capabilities.reduceOps.includes(checked)) {
    throw new UnsupportedError(
      `this backend reduces by ${caller.capabilities.reduceOps.join(', ')}, not by ${checked}.`,
    );
  }
  return checked;
}

export function checkRank(caller: Caller, rank: number, what: string): number {
  if (Number.isInteger(rank) && rank >= 0 && rank < caller.size) return rank;
  throw new InvalidArgumentError(
    `${what}: expected a rank of this group, 0 to ${caller.size - 1}, got ${describeArgument(rank)}.`,
  );
}

/** Buffers that only the root passes: `undefined` on the others. */
export function checkOnlyOn(
  caller: Caller,
  root: number,
  buffer: DataBuffer | undefined,
  what: string,
  rootName: string,
): HostBuffer | undefined {
  if (caller.rank !== root) {
    if (buffer === undefined || buffer === null) return undefined;
    throw new InvalidArgumentError(
      `${what}: only rank ${root} (${rootName}) passes this buffer; pass undefined on the other ranks.`,
    );
  }
  if (buffer !== undefined) return buffer;
  throw new InvalidArgumentError(`${what}: rank ${root} is ${rootName} and must pass this buffer, got undefined.`);
}

/** Unequal parts, or the equal part length; a list of equal counts says the same as none. */
export function checkParts(caller: Caller, counts: readonly number[] | undefined, equalLength: number): Counts {
  if (counts === undefined) return equalLength;
  const checked = checkCounts(caller, counts, 'counts');
  const [first = 0] = checked;
  return checked.every((count) => count === first) ? first : checked;
}

export function checkCounts(caller: Caller, counts: readonly number[], what: string): readonly number[] {
  const isGood =
    Array.isArray(counts) &&
    counts.length === caller.size &&
    counts.every((count: unknown) => Number.isSafeInteger(count) && (count as number) >= 0);
  if (isGood) return [...(counts as readonly number[])];
  throw new InvalidArgumentError(
    `${what}: expected ${caller.size} whole numbers from 0, one for each rank, got ${describeArgument(counts)}.`,
  );
}

export function checkLength(buffer: HostBuffer, expected: number, what: string, reason: string): void {
  if (buffer.length === expected) return;
  throw new InvalidArgumentError(`${what}: expected ${expected} elements (${reason}), got ${buffer.length}.`);
}

export function describeTotal(counts: Counts, size: number): string {
  return typeof counts === 'number' ? `${size} ranks x ${counts}` : `the sum of counts [${counts.join(', ')}]`;
}

/** In place means exactly this rank's part; any other sharing of memory would be overwritten while it is read. */
export function checkOverlap(
  caller: Caller,
  partName: string,
  part: HostBuffer,
  wholeName: string,
  whole: HostBuffer,
  expectedStart: number,
): void {
  const start = overlapStart(part, whole);
  if (start === undefined || start === expectedStart * byteSize(dtypeOf(whole))) return;
  throw new InvalidArgumentError(
    `${partName} and ${wholeName} share memory, but ${partName} is not rank ${caller.rank}'s part of ${wholeName}, which begins at element ${expectedStart}. Pass that part, or a separate buffer.`,
  );
}

/** Bytes from the start of `b` to the start of `a`, if they share memory. */
export function overlapStart(a: HostBuffer, b: HostBuffer): number | undefined {
  if (a.byteLength === 0 || b.byteLength === 0 || a.buffer !== b.buffer) return undefined;
  const isApart = a.byteOffset >= b.byteOffset + b.byteLength || b.byteOffset >= a.byteOffset + a.byteLength;
  return isApart ? undefined : a.byteOffset - b.byteOffset;
}

export const CALL_OPTIONS = ['timeoutMs'] as const;
export const TENSOR_OPTIONS = ['timeoutMs', 'shape', 'label'] as const;
export const COUNTS_OPTIONS = ['timeoutMs', 'shape', 'label', 'counts'] as const;
export const ALL_TO_ALL_OPTIONS = ['timeoutMs', 'shape', 'label', 'sendCounts', 'recvCounts'] as const;

/** The timeout of a call. By hand, not by a schema: this runs on every call. */
export function checkOptions(caller: Caller, options: CallOptions | undefined, known: readonly string[]): number {
  if (options === undefined) return caller.timeoutMs;
  if (typeof options !== 'object' || options === null) {
    throw new InvalidArgumentError(
      `options: expected an object of ${known.join(', ')}, got ${describeArgument(options)}.`,
    );
  }
  for (const key of Object.keys(options)) {
    if (known.includes(key)) continue;
    throw new InvalidArgumentError(`options: unknown key '${key}'. Known options: ${known.join(', ')}.`);
  }
  return checkTimeout(options.timeoutMs, caller.timeoutMs);
}

/** What the caller says of the contents of its buffer, for the fingerprint. */
export function checkContents(options: CallOptions | undefined): Pick<CollectiveCall, 'shape' | 'label'> {
  const { shape, label } = options ?? {};
  if (shape !== undefined && (!Array.isArray(shape) || !shape.every((n) => Number.isSafeInteger(n) && n >= 0))) {
    throw new InvalidArgumentError(`shape: expected a list of whole numbers, got ${describeArgument(shape)}.`);
  }
  if (label !== undefined && typeof label !== 'string') {
    throw new InvalidArgumentError(`label: expected a string, got ${describeArgument(label)}.`);
  }
  // one dimension says no more than the count
  return { shape: shape !== undefined && shape.length > 1 ? shape : undefined, label };
}

/** As it is written in a program, so that '1' is told from 1. */
export function describeArgument(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(describeArgument).join(', ')}]`;
  if (typeof value === 'bigint') return `${value}n`;
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}
