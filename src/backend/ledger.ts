/**
 * What a rank's calls cost on a network.
 *
 * [Note: ledger] Bytes that this rank sends in a bandwidth-optimal algorithm, for N ranks and a buffer of B bytes:
 *
 *     allReduce      2 (N-1)/N B            ring: reduce-scatter, then all-gather (Patarasuk and Yuan, 2009)
 *     allGather      (N-1) x own part       ring: the own part reaches N-1 others
 *     reduceScatter  B - own part           ring; with equal parts (N-1) x part
 *     broadcast      B, on the last rank 0  pipelined chain src, src+1, ..., so that all ranks together send (N-1) B
 *     reduce         B, on dst 0            the same chain backwards
 *     gather         own part, on dst 0     every part crosses once
 *     scatter        on src B - own part    every part crosses once
 *     allToAll       sent to others
 *     send           B; recv 0; batch: the sum of its sends
 *     barrier, split 0
 */
import { byteSize } from '../core/dtype';
import { COLLECTIVE_OPS, POINT_TO_POINT_OPS, type CallOp, type CollectiveCall, type PointToPointCall } from './call';
import { partLength, totalLength } from './parts';

export interface LedgerEntry {
  readonly calls: number;
  readonly bytes: number;
}

/** Calls and bytes of one rank in one group, by op; every op has an entry. */
export type LedgerRecord = Readonly<Record<CallOp, LedgerEntry>>;

interface MutableEntry {
  calls: number;
  /** Bytes times the group's size: whole numbers, so that thirds do not add up rounding errors. */
  scaledBytes: number;
}

export class Ledger {
  readonly #rank: number;
  readonly #size: number;
  #entries = emptyEntries();

  constructor(rank: number, size: number) {
    this.#rank = rank;
    this.#size = size;
  }

  addCollective(call: CollectiveCall): void {
    const entry = this.#entries[call.op];
    entry.calls += 1;
    entry.scaledBytes += scaledBytesSent(call, this.#rank, this.#size);
  }

  addPointToPoint(op: 'send' | 'recv' | 'batch', parts: readonly PointToPointCall[]): void {
    const entry = this.#entries[op];
    entry.calls += 1;
    for (const part of parts) {
      if (part.op === 'send') entry.scaledBytes += part.count * byteSize(part.dtype) * this.#size;
    }
  }

  reset(): void {
    this.#entries = emptyEntries();
  }

  /** A copy of what has been counted since the start or the last `reset`. */
  record(): LedgerRecord {
    const record: Partial<Record<CallOp, LedgerEntry>> = {};
    for (const op of OPS) {
      const { calls, scaledBytes } = this.#entries[op];
      record[op] = { calls, bytes: scaledBytes / this.#size };
    }
    return record as LedgerRecord;
  }
}

/** Bytes that `rank` of `size` sends for a collective, see [Note: ledger]. */
export function bytesSent(call: CollectiveCall, rank: number, size: number): number {
  return scaledBytesSent(call, rank, size) / size;
}

function scaledBytesSent(call: CollectiveCall, rank: number, size: number): number {
  const { op, dtype, counts = 0, root = 0, sendCounts = [] } = call;
  if (dtype === undefined) return 0;
  const own = partLength(counts, rank) * byteSize(dtype);
  switch (op) {
    case 'allReduce':
      return 2 * (size - 1) * own;
    case 'allGather':
      return size * (size - 1) * own;
    case 'reduceScatter':
      return size * (totalLength(counts, size) * byteSize(dtype) - own);
    case 'broadcast':
      return (rank + 1) % size === root ? 0 : size * own;
    case 'reduce':
    case 'gather':
      return rank === root ? 0 : size * own;
    case 'scatter':
      return rank === root ? size * (size - 1) * own : 0;
    case 'allToAll':
      return size * byteSize(dtype) * sendCounts.reduce((sum, count, to) => (to === rank ? sum : sum + count), 0);
    case 'barrier':
    case 'split':
      return 0;
  }
}

const OPS: readonly CallOp[] = [...COLLECTIVE_OPS, ...POINT_TO_POINT_OPS];

function emptyEntries(): Record<CallOp, MutableEntry> {
  const entries: Partial<Record<CallOp, MutableEntry>> = {};
  for (const op of OPS) entries[op] = { calls: 0, scaledBytes: 0 };
  return entries as Record<CallOp, MutableEntry>;
}
