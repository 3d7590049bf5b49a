/** Which schedule a collective runs by. All ranks choose alike, since all that is looked at is in the fingerprint. */
import { byteSize, type DType, type HostBuffer } from '../../core/dtype';
import { invariant } from '../../core/invariant';
import type { ReduceOp } from '../../core/reduce-op';
import { allGatherSchedule } from '../algorithms/all-gather';
import { allReduceDirect, allReduceSlices } from '../algorithms/all-reduce';
import { allToAllSchedule } from '../algorithms/all-to-all';
import { barrierSchedule } from '../algorithms/barrier';
import { broadcastChain, broadcastTree } from '../algorithms/broadcast';
import { gatherSchedule, scatterSchedule } from '../algorithms/gather-scatter';
import { allReduceDoubling } from '../algorithms/recursive-doubling';
import { reduceScatterSchedule, reduceSchedule } from '../algorithms/reduce-scatter';
import type { Place, Schedule } from '../algorithms/schedule';
import type { CollectiveCall } from '../call';
import type { CheckedCollective } from '../check-collective';
import type { UnequalPair } from '../mismatch';
import { partLength } from '../parts';

/**
 * Bytes of a message in a pipeline. Small enough for the reduction of one chunk to hide behind the transfer of the
 * next and to stay in the cache, large enough that the work per frame does not count.
 */
export const PIPELINE_BYTES = 256 * 1024;

/**
 * An all-reduce in which every rank sends at most this much, to all others together, goes directly: one hop instead of
 * two. On local sockets the two ways cross between 64 and 256 KiB of data for 2 to 4 ranks.
 */
const DIRECT_BYTES = 256 * 1024;

/** Up to this size a broadcast goes by tree: fewer hops; above by chain: all links work at once. */
const TREE_BYTES = 64 * 1024;

/**
 * Where an all-reduce need not keep rank order: recursive doubling pays from 4 ranks on, up to about this size, above
 * which it sends too much (docs/decisions/0005-order-of-reductions.md).
 */
const DOUBLING_BYTES = 128 * 1024;
const DOUBLING_RANKS = 4;

/** What one rank does in a collective: steps, and the memory that they work on. */
export interface CollectivePlan {
  readonly schedule: Schedule;
  readonly input: HostBuffer | undefined;
  readonly output: HostBuffer | undefined;
  readonly dtype: DType | undefined;
  readonly reduceOp: ReduceOp | undefined;
  /** When all steps are done: two ranks that disagree after all, if there are. */
  readonly unequalPair?: (() => UnequalPair | undefined) | undefined;
}

/** The collective itself. */
export function dataPlan({ call, send, recv }: CheckedCollective, place: Place): CollectivePlan {
  const { dtype, reduceOp } = call;
  return { schedule: scheduleOf(call, place), input: send, output: recv, dtype, reduceOp };
}

export function scheduleOf(call: CollectiveCall, place: Place): Schedule {
  const elementBytes = call.dtype === undefined ? 1 : byteSize(call.dtype);
  const chunkLength = PIPELINE_BYTES / elementBytes;
  const { root = 0, counts = 0 } = call;
  const length = typeof counts === 'number' ? counts : 0;
  const lengths = (): number[] => Array.from({ length: place.size }, (_unused, rank) => partLength(counts, rank));
  switch (call.op) {
    case 'allReduce':
      if (mayDouble(call, place) && length * elementBytes <= DOUBLING_BYTES) return allReduceDoubling(place, length);
      return length * elementBytes * (place.size - 1) <= DIRECT_BYTES
        ? allReduceDirect(place, length)
        : allReduceSlices(place, { length, chunkLength });
    case 'broadcast':
      return length * elementBytes <= TREE_BYTES
        ? broadcastTree(place, { root, length })
        : broadcastChain(place, { root, length }, chunkLength);
    case 'allGather':
      return allGatherSchedule(place, lengths());
    case 'reduceScatter':
      return reduceScatterSchedule(place, lengths(), chunkLength);
    case 'reduce':
      return reduceSchedule(place, root, length, chunkLength);
    case 'gather':
      return gatherSchedule(place, root, length);
    case 'scatter':
      return scatterSchedule(place, root, length);
    case 'allToAll': {
      const { sendCounts, recvCounts } = call;
      invariant(sendCounts !== undefined && recvCounts !== undefined, 'an all-to-all must have counts');
      return allToAllSchedule(place, sendCounts, recvCounts);
    }
    case 'barrier':
    case 'split':
      return barrierSchedule(place);
  }
}

/** Other dtypes would have to be rounded, or an average of integers truncated, at every hop. */
function mayDouble({ deterministic, dtype }: CollectiveCall, { size }: Place): boolean {
  return deterministic === false && size >= DOUBLING_RANKS && (dtype === 'float32' || dtype === 'float64');
}
