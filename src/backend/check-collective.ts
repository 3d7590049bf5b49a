/**
 * The argument checks of collectives, shared by all backends. Each returns what the call is, in the one form that a
 * backend needs; each throws InvalidArgumentError before anything was sent, so a refused call consumes no sequence
 * number.
 */
import { isDeviceBuffer } from '../core/device-buffer';
import { dtypeOf, viewBuffer, type DataBuffer, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { ReduceOp } from '../core/reduce-op';
import type { AllToAllOptions, CallOptions, CountsOptions } from './backend';
import type { CollectiveCall } from './call';
import {
  ALL_TO_ALL_OPTIONS,
  CALL_OPTIONS,
  COUNTS_OPTIONS,
  TENSOR_OPTIONS,
  checkBuffer,
  checkCounts,
  checkLength,
  checkOnlyOn,
  checkOp,
  checkOptions,
  checkOverlap,
  checkParts,
  checkRank,
  checkContents,
  describeArgument,
  describeTotal,
  overlapStart,
  type Caller,
} from './check-arguments';
import { partLength, partStart, totalLength } from './parts';

/** A collective whose arguments are good; see [Note: checked buffers]. */
export interface CheckedCollective<Buffer extends DataBuffer = HostBuffer> {
  readonly call: CollectiveCall;
  /** What this rank contributes; undefined where it contributes nothing. */
  readonly send: Buffer | undefined;
  /** Where this rank's result goes; the same object as `send` for calls in place. */
  readonly recv: Buffer | undefined;
  readonly timeoutMs: number;
}

export function checkAllReduce(
  caller: Caller,
  data: DataBuffer,
  op: ReduceOp,
  options?: CallOptions,
): CheckedCollective {
  checkBuffer(caller, data, 'data');
  const dtype = dtypeOf(data);
  const reduceOp = checkOp(caller, op, dtype);
  const timeoutMs = checkOptions(caller, options, TENSOR_OPTIONS);
  const deterministic = caller.deterministic === false ? false : undefined;
  return {
    call: { op: 'allReduce', reduceOp, dtype, counts: data.length, ...checkContents(options), deterministic },
    send: data,
    recv: data,
    timeoutMs,
  };
}

export function checkBroadcast(
  caller: Caller,
  data: DataBuffer,
  src: number,
  options?: CallOptions,
): CheckedCollective {
  checkBuffer(caller, data, 'data');
  const dtype = dtypeOf(data);
  const root = checkRank(caller, src, 'src');
  const timeoutMs = checkOptions(caller, options, TENSOR_OPTIONS);
  const isSource = caller.rank === root;
  return {
    call: { op: 'broadcast', dtype, counts: data.length, root, ...checkContents(options) },
    send: isSource ? data : undefined,
    recv: isSource ? undefined : data,
    timeoutMs,
  };
}

export function checkAllGather(
  caller: Caller,
  send: DataBuffer,
  recv: DataBuffer,
  options?: CountsOptions,
): CheckedCollective {
  checkBuffer(caller, send, 'send');
  const dtype = dtypeOf(send);
  checkBuffer(caller, recv, 'recv', dtype);
  const timeoutMs = checkOptions(caller, options, COUNTS_OPTIONS);
  const counts = checkParts(caller, options?.counts, send.length);
  checkLength(send, partLength(counts, caller.rank), 'send', `counts[${caller.rank}]`);
  checkLength(recv, totalLength(counts, caller.size), 'recv', describeTotal(counts, caller.size));
  checkOverlap(caller, 'send', send, 'recv', recv, partStart(counts, caller.rank));
  return { call: { op: 'allGather', dtype, counts, ...checkContents(options) }, send, recv, timeoutMs };
}

export function checkReduceScatter(
  caller: Caller,
  send: DataBuffer,
  recv: DataBuffer,
  op: ReduceOp,
  options?: CountsOptions,
): CheckedCollective {
  checkBuffer(caller, send, 'send');
  const dtype = dtypeOf(send);
  checkBuffer(caller, recv, 'recv', dtype);
  const reduceOp = checkOp(caller, op, dtype);
  const timeoutMs = checkOptions(caller, options, COUNTS_OPTIONS);
  const counts = checkParts(caller, options?.counts, recv.length);
  checkLength(recv, partLength(counts, caller.rank), 'recv', `counts[${caller.rank}]`);
  checkLength(send, totalLength(counts, caller.size), 'send', describeTotal(counts, caller.size));
  checkOverlap(caller, 'recv', recv, 'send', send, partStart(counts, caller.rank));
  return { call: { op: 'reduceScatter', reduceOp, dtype, counts, ...checkContents(options) }, send, recv, timeoutMs };
}

export function checkReduce(
  caller: Caller,
  send: DataBuffer,
  recv: DataBuffer | undefined,
  dst: number,
  op: ReduceOp,
  options?: CallOptions,
): CheckedCollective {
  checkBuffer(caller, send, 'send');
  const dtype = dtypeOf(send);
  const root = checkRank(caller, dst, 'dst');
  const reduceOp = checkOp(caller, op, dtype);
  const timeoutMs = checkOptions(caller, options, TENSOR_OPTIONS);
  const output = checkOnlyOn(caller, root, recv, 'recv', 'dst');
  if (output !== undefined) {
    checkBuffer(caller, output, 'recv', dtype);
    checkLength(output, send.length, 'recv', 'the length of send');
    checkOverlap(caller, 'recv', output, 'send', send, 0);
  }
  return {
    call: { op: 'reduce', reduceOp, dtype, counts: send.length, root, ...checkContents(options) },
    send,
    recv: output,
    timeoutMs,
  };
}

export function checkGather(
  caller: Caller,
  send: DataBuffer,
  recv: DataBuffer | undefined,
  dst: number,
  options?: CallOptions,
): CheckedCollective {
  checkBuffer(caller, send, 'send');
  const dtype = dtypeOf(send);
  const root = checkRank(caller, dst, 'dst');
  const timeoutMs = checkOptions(caller, options, TENSOR_OPTIONS);
  const output = checkOnlyOn(caller, root, recv, 'recv', 'dst');
  if (output !== undefined) {
    checkBuffer(caller, output, 'recv', dtype);
    checkLength(output, totalLength(send.length, caller.size), 'recv', describeTotal(send.length, caller.size));
    checkOverlap(caller, 'send', send, 'recv', output, partStart(send.length, caller.rank));
  }
  return {
    call: { op: 'gather', dtype, counts: send.length, root, ...checkContents(options) },
    send,
    recv: output,
    timeoutMs,
  };
}

export function checkScatter(
  caller: Caller,
  send: DataBuffer | undefined,
  recv: DataBuffer,
  src: number,
  options?: CallOptions,
): CheckedCollective {
  checkBuffer(caller, recv, 'recv');
  const dtype = dtypeOf(recv);
  const root = checkRank(caller, src, 'src');
  const timeoutMs = checkOptions(caller, options, TENSOR_OPTIONS);
  const input = checkOnlyOn(caller, root, send, 'send', 'src');
  if (input !== undefined) {
    checkBuffer(caller, input, 'send', dtype);
    checkLength(input, totalLength(recv.length, caller.size), 'send', describeTotal(recv.length, caller.size));
    checkOverlap(caller, 'recv', recv, 'send', input, partStart(recv.length, caller.rank));
  }
  return {
    call: { op: 'scatter', dtype, counts: recv.length, root, ...checkContents(options) },
    send: input,
    recv,
    timeoutMs,
  };
}

export function checkAllToAll(
  caller: Caller,
  send: DataBuffer,
  recv: DataBuffer,
  options?: AllToAllOptions,
): CheckedCollective {
  checkBuffer(caller, send, 'send');
  const dtype = dtypeOf(send);
  checkBuffer(caller, recv, 'recv', dtype);
  const timeoutMs = checkOptions(caller, options, ALL_TO_ALL_OPTIONS);
  const sendCounts = checkExchange(caller, options?.sendCounts, send, 'send');
  const recvCounts = checkExchange(caller, options?.recvCounts, recv, 'recv');
  const [toItself, fromItself] = [sendCounts[caller.rank], recvCounts[caller.rank]];
  if (toItself !== fromItself) {
    throw new InvalidArgumentError(
      `sendCounts [${sendCounts.join(', ')}] and recvCounts [${recvCounts.join(', ')}]: this rank sends itself ${toItself} elements and expects ${fromItself} of itself. Make them equal.`,
    );
  }
  if (overlapStart(send, recv) !== undefined) {
    throw new InvalidArgumentError(
      'send and recv share memory; an all-to-all has no in-place form. Pass two separate buffers.',
    );
  }
  return {
    call: { op: 'allToAll', dtype, sendCounts, recvCounts, ...checkContents(options) },
    send: front(send, sendCounts),
    recv: front(recv, recvCounts),
    timeoutMs,
  };
}

export function checkBarrier(caller: Caller, options?: CallOptions): CheckedCollective {
  const timeoutMs = checkOptions(caller, options, CALL_OPTIONS);
  return { call: { op: 'barrier' }, send: undefined, recv: undefined, timeoutMs };
}

export function checkSplit(caller: Caller, ranks: readonly number[], options?: CallOptions): CheckedCollective {
  const timeoutMs = checkOptions(caller, options, CALL_OPTIONS);
  if (!Array.isArray(ranks) || ranks.length === 0) {
    throw new InvalidArgumentError(`ranks: expected a list of at least one rank, got ${describeArgument(ranks)}.`);
  }
  const seen = new Set<number>();
  for (const rank of ranks as readonly number[]) {
    checkRank(caller, rank, `ranks [${ranks.join(', ')}]`);
    if (seen.has(rank)) {
      throw new InvalidArgumentError(`ranks [${ranks.join(', ')}]: rank ${rank} is listed twice; list each rank once.`);
    }
    seen.add(rank);
  }
  return {
    call: { op: 'split', ranks: [...(ranks as readonly number[])] },
    send: undefined,
    recv: undefined,
    timeoutMs,
  };
}

/** The parts of one side of an all-to-all: given, or equal. */
function checkExchange(
  caller: Caller,
  counts: readonly number[] | undefined,
  buffer: HostBuffer,
  side: 'send' | 'recv',
): readonly number[] {
  if (counts === undefined) {
    if (buffer.length % caller.size === 0) return new Array<number>(caller.size).fill(buffer.length / caller.size);
    throw new InvalidArgumentError(
      `${side}: ${buffer.length} elements do not divide into ${caller.size} equal parts. Pass ${side}Counts, or pad the buffer.`,
    );
  }
  const checked = checkCounts(caller, counts, `${side}Counts`);
  const total = checked.reduce((sum, count) => sum + count, 0);
  if (total <= buffer.length) return checked;
  throw new InvalidArgumentError(
    `${side}: ${side}Counts [${checked.join(', ')}] need ${total} elements, the buffer has ${buffer.length}.`,
  );
}

/** The part of the buffer that the counts cover; the rest takes no part in the call. A device buffer stays whole: a view is a handle to be closed. */
function front(buffer: HostBuffer, counts: readonly number[]): HostBuffer {
  const length = totalLength(counts, counts.length);
  if (isDeviceBuffer(buffer)) return buffer;
  return length === buffer.length ? buffer : viewBuffer(buffer, 0, length);
}
