/** Start every rank from rank 0's values, once it is sure that all ranks have the same module. */
import { copyBuffer, isSameBits } from '../core/dtype';
import { checkAgreement } from '../comm/agreement';
import type { ProcessGroup } from '../process-group/process-group';
import { noGrad } from '../tensor/gradient-mode';
import type { Tensor } from '../tensor/tensor';

/** A tensor that ranks share by name. */
export interface NamedTensor {
  readonly name: string;
  readonly tensor: Tensor;
}

/**
 * Compare names, shapes, dtypes and settings over the ranks.
 * @throws InvalidArgumentError on every rank alike, naming the first rank and entry that differ; the group lives on
 */
export async function checkSameModule(
  tensors: readonly NamedTensor[],
  settings: readonly string[],
  group: ProcessGroup,
): Promise<void> {
  const entries = tensors.map(
    ({ name, tensor }) =>
      `'${name}' [${tensor.shape.join(', ')}] ${tensor.dtype}${tensor.requiresGrad ? '' : ' without gradient'}`,
  );
  await checkAgreement(
    [...settings, ...entries],
    group,
    'DistributedDataParallel',
    ({ index, rank, theirs = 'missing', reference = 'missing' }) =>
      `the ranks wrap different modules: ${index < settings.length ? 'option' : 'parameter or buffer'} ${index < settings.length ? index : index - settings.length} is ${theirs} on rank ${rank}, and ${reference} on rank 0. Build the same module with the same options on every rank; only values may differ.`,
  );
}

/** Overwrite `tensors` with those of rank `source`, in place. */
export async function broadcastTensors(
  tensors: readonly NamedTensor[],
  source: number,
  group: ProcessGroup,
): Promise<void> {
  await noGrad(async () => {
    await Promise.all(tensors.map(({ tensor }) => group.broadcast(tensor, source)));
  });
}

/**
 * The same for buffers, before a forward: only those whose bits differ are written to, since a graph that an earlier
 * forward has recorded may still need them, and must be refused if they really change.
 */
export async function refreshTensors(
  tensors: readonly NamedTensor[],
  source: number,
  group: ProcessGroup,
): Promise<void> {
  await noGrad(async () => {
    const copies = tensors.map(({ tensor }) => tensor.clone());
    await Promise.all(copies.map((copy) => group.broadcast(copy, source)));
    tensors.forEach(({ tensor }, index) => {
      const copy = copies[index] as Tensor;
      if (!isSameBits(tensor.storage.buffer, copy.storage.buffer)) {
        copyBuffer(tensor.storage.buffer, copy.storage.buffer);
        tensor.storage.markChanged();
      }
      copy.dispose();
    });
  });
}
