/** Start every rank from rank 0's values, once it is sure that all ranks have the same module. */
import { copyBuffer, isSameBits } from '../core/dtype';
import { checkListsAgree } from '../comm/agreement';
import type { ProcessGroup } from '../process-group/process-group';
import { noGrad } from '../tensor/gradient-mode';
import type { Tensor } from '../tensor/tensor';

/** A tensor that ranks share by name. */
export interface NamedTensor {
  readonly name: string;
  readonly tensor: Tensor;
}

/** What the ranks pass, entry by entry. */
export interface ComparedList {
  /** 'option stage', which messages go on with 'is 1 on rank 1, and 0 on rank 0'. */
  readonly labelOf: (index: number) => string;
  readonly entries: readonly string[];
}

/**
 * Compare names, shapes and dtypes over the ranks, then options, then what else there is.
 * @param strategy who wraps the module, for messages
 * @throws InvalidArgumentError on every rank alike, naming the first rank and entry that differ; the group lives on
 */
export async function checkSameModule(
  tensors: readonly NamedTensor[],
  options: Readonly<Record<string, unknown>>,
  group: ProcessGroup,
  strategy: string,
  others: readonly ComparedList[] = [],
): Promise<void> {
  const ofTensors: ComparedList = {
    labelOf: (index) => `parameter or buffer ${index}`,
    entries: tensors.map(
      ({ name, tensor }) =>
        `'${name}' [${tensor.shape.join(', ')}] ${tensor.dtype}${tensor.requiresGrad ? '' : ' without gradient'}`,
    ),
  };
  const names = Object.keys(options);
  const ofOptions: ComparedList = {
    labelOf: (index) => `option ${names[index]}`,
    entries: Object.values(options).map((value) => (typeof value === 'string' ? value : String(JSON.stringify(value)))),
  };
  const lists = [ofTensors, ofOptions, ...others];
  await checkListsAgree(
    lists.map(({ entries }) => entries),
    group,
    strategy,
    (list, { index, rank, theirs = 'missing', reference = 'missing' }) =>
      `the ranks wrap different modules: ${lists[list]?.labelOf(index)} is ${theirs} on rank ${rank}, and ${reference} on rank 0. Build the same module with the same options on every rank; only values may differ.`,
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
