/** Collectives that move elements without changing them. See [Note: comm] for what they have in common. */
import type { CallOptions } from '../backend/backend';
import type { Work } from '../core/work';
import type { ProcessGroup } from '../process-group/process-group';
import type { Tensor } from '../tensor/tensor';
import { launchOn, runOn } from './group-argument';

/** Copy the elements of rank 0 into `tensor` of every other rank. */
export function broadcast(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'broadcast', () => group.broadcast(tensor, 0, options));
}

/** Copy the elements of rank `src` into `tensor` of every other rank. */
export function broadcastFrom(tensor: Tensor, src: number, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'broadcastFrom', () => group.broadcast(tensor, src, options));
}

/** All ranks' tensors, stacked in rank order, in a new tensor: [size, ...shape]. */
export function allGather(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Promise<Tensor> {
  return runOn(group, 'allGather', () => group.allGather(tensor, options));
}

/** On rank `dst` all ranks' tensors, stacked in rank order, in a new tensor: [size, ...shape]; undefined elsewhere. */
export function gatherTo(
  tensor: Tensor,
  dst: number,
  group: ProcessGroup,
  options?: CallOptions,
): Promise<Tensor | undefined> {
  return runOn(group, 'gatherTo', () => group.gather(tensor, dst, options));
}

/**
 * This rank's part of dimension 0 of the tensor of rank `src`, in a new tensor: [n, ...] gives [n / size, ...].
 *
 * The source announces shape and dtype first, so the other ranks need not know them: they pass undefined (what they
 * pass is not looked at). If the source cannot scatter, every rank rejects with the reason and the group lives on.
 */
export function scatterFrom(
  tensor: Tensor | undefined,
  src: number,
  group: ProcessGroup,
  options?: CallOptions,
): Promise<Tensor> {
  return runOn(group, 'scatterFrom', () => group.scatter(tensor, src, options));
}

/** Part j of dimension 0 goes to rank j, and part i of the result, a new tensor of the same shape, is from rank i. */
export function allToAll(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Promise<Tensor> {
  return runOn(group, 'allToAll', () => group.allToAll(tensor, options));
}
