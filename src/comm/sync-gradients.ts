/** Averaging gradients by hand; DistributedDataParallel does it for a whole module, and during backward. */
import type { CallOptions } from '../backend/backend';
import { allocateBuffer, copyBuffer, viewBuffer, type DType } from '../core/dtype';
import { ReduceOp } from '../core/reduce-op';
import type { Work } from '../core/work';
import type { ProcessGroup } from '../process-group/process-group';
import { bufferForCall } from '../process-group/tensor-collectives';
import { Tensor } from '../tensor/tensor';
import { withMemoryCategory } from '../tensor/storage';
import { describeEntry } from './agreement';
import { placeIn } from './place-in';
import { launchOn, runOn } from './group-argument';

/** Average one gradient over all ranks, in place. */
export function syncGradient(tensor: Tensor, group: ProcessGroup, options?: CallOptions): Work {
  return launchOn(group, 'syncGradient', () => group.allReduce(tensor, ReduceOp.Average, options));
}

/**
 * Average gradients over all ranks, in place.
 *
 * They travel flattened, in one collective for each dtype, which takes a second copy of them while it lasts; the bits
 * are those of one `syncGradient` each. Entries may be undefined (a parameter without a gradient), if they are so on
 * every rank. If it fails, all gradients are left as they were.
 */
export function syncGradients(
  tensors: readonly (Tensor | undefined)[],
  group: ProcessGroup,
  options?: CallOptions,
): Promise<void> {
  return runOn(group, 'syncGradients', async () => {
    const place = placeIn(group, 'syncGradients');
    const byDType = new Map<DType, Tensor[]>();
    for (const tensor of tensors) {
      if (tensor === undefined || tensor === null) continue;
      bufferForCall(tensor, place);
      const members = byDType.get(tensor.dtype) ?? [];
      byDType.set(tensor.dtype, members);
      members.push(tensor);
    }
    // flattened, they would be matched by their total size alone
    const label = `gradients ${Array.from(tensors, (tensor) => describeEntry(tensor ?? undefined)).join(', ')}`;
    const flats = [...byDType.values()].map(flatten);
    try {
      await Promise.all(flats.map(({ flat }) => group.allReduce(flat, ReduceOp.Average, { ...options, label })));
      for (const { flat, members } of flats) unflatten(flat, members);
    } finally {
      for (const { flat } of flats) flat.dispose();
    }
  });
}

interface Flat {
  readonly flat: Tensor;
  readonly members: readonly Tensor[];
}

function flatten(members: readonly Tensor[]): Flat {
  const length = members.reduce((total, member) => total + member.size, 0);
  const buffer = allocateBuffer((members[0] as Tensor).dtype, length);
  let start = 0;
  for (const member of members) {
    copyBuffer(buffer, member.storage.buffer, start);
    start += member.size;
  }
  return { flat: withMemoryCategory('communication', () => Tensor.wrap(buffer)), members };
}

function unflatten(flat: Tensor, members: readonly Tensor[]): void {
  let start = 0;
  for (const member of members) {
    copyBuffer(member.storage.buffer, viewBuffer(flat.storage.buffer, start, member.size));
    member.storage.markChanged();
    start += member.size;
  }
}
