/** Start every rank from rank 0's values, once it is sure that all ranks have the same module. */
import { InvalidArgumentError } from '../core/errors';
import type { ProcessGroup } from '../process-group/process-group';
import { noGrad } from '../tensor/gradient-mode';
import type { Tensor } from '../tensor/tensor';

/** A tensor that ranks share by name. */
export interface NamedTensor {
  readonly name: string;
  readonly tensor: Tensor;
}

/** What a rank tells about itself before anything is sent. */
interface Manifest {
  readonly settings: readonly string[];
  readonly tensors: readonly string[];
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
  const manifest: Manifest = {
    settings,
    tensors: tensors.map(
      ({ name, tensor }) =>
        `'${name}' [${tensor.shape.join(', ')}] ${tensor.dtype}${tensor.requiresGrad ? '' : ' without gradient'}`,
    ),
  };
  const all = await group.allGatherObjects(manifest);
  const reference = all[0] as Manifest;
  all.forEach((theirs, rank) => {
    compare(theirs.tensors, reference.tensors, rank, 'parameter or buffer', group);
    compare(theirs.settings, reference.settings, rank, 'option', group);
  });
}

function compare(
  theirs: readonly string[],
  reference: readonly string[],
  rank: number,
  what: string,
  group: ProcessGroup,
): void {
  const length = Math.max(theirs.length, reference.length);
  for (let i = 0; i < length; i++) {
    if (theirs[i] === reference[i]) continue;
    throw new InvalidArgumentError(
      `DistributedDataParallel: the ranks wrap different modules. ${what} ${i} is ${theirs[i] ?? 'missing'} on rank ${rank}, and ${reference[i] ?? 'missing'} on rank 0. Build the same module with the same options on every rank; only values may differ.`,
      { rank: group.rank, op: 'syncParameters', ranks: [rank] },
    );
  }
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
