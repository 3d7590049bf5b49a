/** A tensor and its slices, one on each rank. */
import type { CallOptions } from '../backend/backend';
import type { ProcessGroup } from '../process-group/process-group';
import { equalPart } from '../process-group/equal-parts';
import { bufferForCall } from '../process-group/tensor-collectives';
import { resolveDim, sizeOf } from '../tensor/shape';
import type { Tensor } from '../tensor/tensor';
import { placeIn } from './place-in';
import { runOn } from './group-argument';

/**
 * This rank's slice along `dim` of a tensor that every rank holds whole, in a new tensor. Nothing is sent.
 *
 * Shapes: [..., n, ...] gives [..., n / size, ...]. A negative `dim` counts from the back.
 * @throws InvalidArgumentError with the sizes, if n does not divide
 */
export function scatterTensor(tensor: Tensor, dim: number, group: ProcessGroup): Promise<Tensor> {
  return runOn(group, 'scatterTensor', async () => {
    const place = placeIn(group, 'scatterTensor');
    bufferForCall(tensor, place);
    const along = resolveDim(dim, tensor.shape.length, 'scatterTensor');
    const length = equalPart(tensor.shape, along, place);
    return tensor.slice(along, group.rank * length, (group.rank + 1) * length);
  });
}

/**
 * The slices of all ranks, concatenated along `dim` in rank order, in a new tensor on every rank: the inverse of
 * `scatterTensor`.
 *
 * Shapes: [..., n, ...] gives [..., n * size, ...]; the same n on every rank. A negative `dim` counts from the back.
 */
export function gatherTensor(tensor: Tensor, dim: number, group: ProcessGroup, options?: CallOptions): Promise<Tensor> {
  return runOn(group, 'gatherTensor', async () => {
    bufferForCall(tensor, placeIn(group, 'gatherTensor'));
    const along = resolveDim(dim, tensor.shape.length, 'gatherTensor');
    const outer = tensor.shape.slice(0, along);
    const [extent = 0, ...inner] = tensor.shape.slice(along);
    const stacked = await group.allGather(tensor, options);
    // One row a rank becomes one row an outer index, with the ranks' blocks side by side in it.
    const rows = stacked.reshape([group.size, sizeOf(outer), extent * sizeOf(inner)]);
    const ordered = along === 0 ? rows : rows.transpose(0, 1);
    const gathered = ordered.reshape([...outer, group.size * extent, ...inner]);
    for (const step of new Set([stacked, rows, ordered])) step.dispose();
    return gathered;
  });
}
