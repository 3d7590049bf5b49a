/**
 * The collectives as functions: the data first, the group last.
 *
 * [Note: comm] Every rank of the group calls the same functions in the same order. All reject, and never throw, with the
 * errors of ProcessGroup; those that work in place return a Work, which is a promise that may also be kept while
 * something is computed. Roots and peers are ranks of the group. A group of one takes part in everything.
 * Tensors that require grad are refused outside `noGrad`: no gradient flows through these.
 */
import type { CallOptions } from '../backend/backend';
import type { Work } from '../core/work';
import type { ProcessGroup } from '../process-group/process-group';
import { checkGroup, launchOn } from './group-argument';

/** Settles once every rank has called it. */
export function barrier(group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'barrier', () => group.barrier(options));
}

/** This rank in the group; -1 if it is not a member. */
export function rank(group: ProcessGroup): number {
  checkGroup(group, 'rank');
  return group.rank;
}

/** Number of ranks in the world that the group belongs to; of the group itself it is `group.size`. */
export function worldSize(group: ProcessGroup): number {
  checkGroup(group, 'worldSize');
  return group.worldSize;
}

/** True on rank 0 of the group, which prints and saves. */
export function isMainProcess(group: ProcessGroup): boolean {
  checkGroup(group, 'isMainProcess');
  return group.rank === 0;
}
