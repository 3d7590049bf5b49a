/**
 * What a rank called: the fingerprint by which ranks of a group find out that they disagree, and its rendering for
 * messages. Fingerprints are plain JSON, so that a backend may send them.
 */
import type { DType } from '../core/dtype';
import type { ReduceOp } from '../core/reduce-op';

export const COLLECTIVE_OPS = [
  'allReduce',
  'broadcast',
  'allGather',
  'reduceScatter',
  'reduce',
  'gather',
  'scatter',
  'allToAll',
  'barrier',
  'split',
] as const;
export type CollectiveOp = (typeof COLLECTIVE_OPS)[number];

export const POINT_TO_POINT_OPS = ['send', 'recv', 'batch'] as const;
export type PointToPointOp = (typeof POINT_TO_POINT_OPS)[number];

/** Every call that a backend has a method for. */
export type CallOp = CollectiveOp | PointToPointOp;

/**
 * The fingerprint of a collective. Two ranks' calls match if all fields agree, less `sendCounts` and `recvCounts`,
 * which belong to one rank and are compared pair by pair ([Note: all-to-all counts]).
 */
export interface CollectiveCall {
  readonly op: CollectiveOp;
  readonly reduceOp?: ReduceOp | undefined;
  readonly dtype?: DType | undefined;
  /** Elements per rank: one number where all ranks have as many, else a list by rank. */
  readonly counts?: number | readonly number[] | undefined;
  /** Of the tensor that each rank passes, where it has more than one dimension. */
  readonly shape?: readonly number[] | undefined;
  /** What each rank says that it passes. */
  readonly label?: string | undefined;
  /** False: the order of a reduction may be another than rank order. */
  readonly deterministic?: false | undefined;
  /** Source or destination, as a rank of the group. */
  readonly root?: number | undefined;
  /** The ranks that a split takes. */
  readonly ranks?: readonly number[] | undefined;
  /** Of allToAll: elements for each rank, and from each rank. */
  readonly sendCounts?: readonly number[] | undefined;
  readonly recvCounts?: readonly number[] | undefined;
}

/** One send or receive, alone or in a batch. */
export interface PointToPointCall {
  readonly op: 'send' | 'recv';
  readonly dtype: DType;
  readonly count: number;
  readonly peer: number;
  readonly tag: number;
}

/** True if two ranks of a group called the same thing. */
export function isSameCollective(a: CollectiveCall, b: CollectiveCall): boolean {
  return (
    a.op === b.op &&
    a.dtype === b.dtype &&
    a.reduceOp === b.reduceOp &&
    a.root === b.root &&
    isSameCounts(a.counts, b.counts) &&
    isSameCounts(a.shape, b.shape) &&
    a.label === b.label &&
    a.deterministic === b.deterministic &&
    isSameCounts(a.ranks, b.ranks)
  );
}

type Counts = number | readonly number[] | undefined;

function isSameCounts(a: Counts, b: Counts): boolean {
  if (typeof a !== 'object' || typeof b !== 'object') return a === b;
  return a.length === b.length && a.every((count, index) => count === b[index]);
}

/**
 * The first pair of ranks whose all-to-all counts disagree, if any.
 *
 * [Note: all-to-all counts] What rank i sends to rank j must be what j receives from i; nothing else need agree.
 */
export function findUnequalPair(
  calls: readonly (CollectiveCall | undefined)[],
): { readonly sender: number; readonly receiver: number } | undefined {
  for (const [sender, sending] of calls.entries()) {
    for (const [receiver, receiving] of calls.entries()) {
      if (sending?.sendCounts === undefined || receiving?.recvCounts === undefined) continue; // another collective
      if (sending.sendCounts[receiver] !== receiving.recvCounts[sender]) return { sender, receiver };
    }
  }
  return undefined;
}

/** As `allReduce(float32[4], Sum)`. */
export function describeCollective(call: CollectiveCall): string {
  const label = call.label === undefined ? undefined : `of ${shortened(call.label)}`;
  const order = call.deterministic === false ? 'deterministic: false' : undefined;
  const parts = [describeData(call), describeRoot(call), call.reduceOp, order, label].filter(
    (part) => part !== undefined,
  );
  return `${call.op}(${parts.join(', ')})`;
}

/** Labels of many parameters fill pages. */
const LONGEST_LABEL = 160;

function shortened(label: string): string {
  return label.length <= LONGEST_LABEL ? label : `${label.slice(0, LONGEST_LABEL)}...`;
}

function describeData(call: CollectiveCall): string | undefined {
  const { op, dtype, counts, shape, ranks, sendCounts, recvCounts } = call;
  if (ranks !== undefined) return `[${ranks.join(', ')}]`;
  if (dtype === undefined) return undefined;
  if (sendCounts !== undefined && recvCounts !== undefined) {
    return `${dtype}, sending [${sendCounts.join(', ')}], receiving [${recvCounts.join(', ')}]`;
  }
  if (typeof counts === 'object') return `${dtype}, counts [${counts.join(', ')}]`;
  const isPerRank = op === 'allGather' || op === 'reduceScatter' || op === 'gather' || op === 'scatter';
  const extent = shape === undefined ? String(counts) : shape.join(', ');
  return `${dtype}[${extent}]${isPerRank ? ' per rank' : ''}`;
}

function describeRoot(call: CollectiveCall): string | undefined {
  if (call.root === undefined) return undefined;
  return `${call.op === 'reduce' || call.op === 'gather' ? 'to' : 'from'} rank ${call.root}`;
}

/** As `send(float32[4], to rank 1, tag 0)`. */
export function describePointToPoint(call: PointToPointCall): string {
  const direction = call.op === 'send' ? 'to' : 'from';
  return `${call.op}(${call.dtype}[${call.count}], ${direction} rank ${call.peer}, tag ${call.tag})`;
}
