/** Collectives that combine the elements of all ranks. See [Note: comm] for what they have in common. */
import type { CallOptions } from '../backend/backend';
import { ReduceOp } from '../core/reduce-op';
import type { Work } from '../core/work';
import type { ProcessGroup } from '../process-group/process-group';
import type { Tensor } from '../tensor/tensor';
import { launchOn, runOn } from './group-argument';

/** Add `tensor` up over all ranks, in place. Integers wrap. */
export function allReduceSum(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'allReduceSum', () => group.allReduce(tensor, ReduceOp.Sum, options));
}

/** Average `tensor` over all ranks, in place: the sum, divided once at the end. Integers truncate toward zero. */
export function allReduceMean(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'allReduceMean', () => group.allReduce(tensor, ReduceOp.Average, options));
}

/** The smallest of all ranks' elements, in place; NaN if any is NaN. */
export function allReduceMin(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'allReduceMin', () => group.allReduce(tensor, ReduceOp.Min, options));
}

/** The largest of all ranks' elements, in place; NaN if any is NaN. */
export function allReduceMax(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'allReduceMax', () => group.allReduce(tensor, ReduceOp.Max, options));
}

/** Multiply `tensor` over all ranks, in place. Integers wrap. */
export function allReduceProduct(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'allReduceProduct', () => group.allReduce(tensor, ReduceOp.Product, options));
}

/**
 * The same as `group.allReduce`, bit for bit, under the name that it has in the crate.
 *
 * Nothing here says that the bytes go around a ring: the backend chooses the schedule, and one that would change the
 * order of the additions only where it was asked to give up reproducible bits.
 */
export function ringAllReduce(
  tensor: Tensor,
  group: ProcessGroup,
  op: ReduceOp = ReduceOp.Sum,
  options?: CallOptions,
): Work {
  return launchOn(group, 'ringAllReduce', () => group.allReduce(tensor, op, options));
}

/** Reduce into `tensor` of rank `dst`, in place; those of the other ranks stay as they are. */
export function reduceTo(
  tensor: Tensor,
  dst: number,
  group: ProcessGroup,
  op: ReduceOp = ReduceOp.Sum,
  options?: CallOptions,
): Work {
  return launchOn(group, 'reduceTo', () => group.reduce(tensor, dst, op, options));
}

/** Add up over all ranks and keep this rank's part of dimension 0, in a new tensor: [n, ...] gives [n / size, ...]. */
export function reduceScatterSum(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Promise<Tensor> {
  return runOn(group, 'reduceScatterSum', () => group.reduceScatter(tensor, ReduceOp.Sum, options));
}

/** Average over all ranks and keep this rank's part of dimension 0, in a new tensor: [n, ...] gives [n / size, ...]. */
export function reduceScatterMean(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Promise<Tensor> {
  return runOn(group, 'reduceScatterMean', () => group.reduceScatter(tensor, ReduceOp.Average, options));
}
