/** What all calls' arguments have in common: buffers, ranks, counts, options. Each check throws InvalidArgumentError. */
import { checkTimeout } from '../core/deadline';
import { isDeviceBuffer, type DeviceBuffer } from '../core/device-buffer';
import {
  byteSize,
  dtypeOf,
  isDetached,
  isFloatDType,
  type DataBuffer,
  type DType,
  type HostBuffer,
} from '../core/dtype';
import { InvalidArgumentError, UnsupportedError } from '../core/errors';
import { ReduceOp, checkReduceOp } from '../core/reduce-op';
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
  /** Of a backend that takes device buffers: throws InvalidArgumentError for one that this rank cannot use. */
  readonly checkDeviceBuffer?: ((buffer: DeviceBuffer, what: string) => void) | undefined;
}

/**
 * [Note: checked buffers] A buffer that is checked is one that this backend takes. Most backends take host buffers alone, so
 * that is what its type says from here on. A backend that also takes device buffers gets them under the same name, and says
 * so by the type that it takes calls as: CheckedCollective<DataBuffer>.
 */
export function checkBuffer(
  caller: Caller,
  buffer: unknown,
  what: string,
  expected?: DType,
): asserts buffer is HostBuffer {
  const dtype = dtypeOf(buffer, what);
  if (isDeviceBuffer(buffer)) checkDeviceBuffer(caller, buffer, what);
  else if (isDetached(buffer as HostBuffer)) {
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
}

function checkDeviceBuffer(caller: Caller, buffer: DeviceBuffer, what: string): void {
  if (!caller.capabilities.devices.includes('cuda')) {
    throw new UnsupportedError(
      `${what}: this backend moves buffers in host memory, got one on ${buffer.device}. Use World.init({ backend: 'nccl' }), or copy it to a host buffer first, by the download method of the device that made it.`,
    );
  }
  caller.checkDeviceBuffer?.(buffer, what);
}

export function checkOp(caller: Caller, op: ReduceOp, dtype: DType): ReduceOp {
  const checked = checkReduceOp(op, dtype);
  if (!caller.capabilities.reduceOps.includes(checked)) {
    throw new UnsupportedError(
      `this backend reduces by ${caller.capabilities.reduceOps.join(', ')}, not by ${checked}.`,
    );
  }
  if (checked === ReduceOp.Average && caller.capabilities.integerAverage === false && !isFloatDType(dtype)) {
    throw new UnsupportedError(
      `this backend averages floating point numbers only, got ${dtype}. Reduce by Sum and divide, or average a float64 copy.`,
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
  if (buffer !== undefined) return buffer as HostBuffer; // not checked yet
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
export function overlapStart(a: DataBuffer, b: DataBuffer): number | undefined {
  if (a.byteLength === 0 || b.byteLength === 0 || memoryOf(a) !== memoryOf(b)) return undefined;
  const isApart = a.byteOffset >= b.byteOffset + b.byteLength || b.byteOffset >= a.byteOffset + a.byteLength;
  return isApart ? undefined : a.byteOffset - b.byteOffset;
}

function memoryOf(buffer: DataBuffer): object {
  return isDeviceBuffer(buffer) ? buffer.memory : buffer.buffer;
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
