import { InvalidArgumentError } from '../core/errors';
import type { ProcessGroup } from '../process-group/process-group';

/** Where a rank's list differs from rank 0's; undefined entries are missing. */
export interface Difference {
  readonly rank: number;
  readonly index: number;
  readonly theirs: string | undefined;
  readonly reference: string | undefined;
}

/**
 * Make sure that every rank passes the same list, before anything is sent that is matched by size alone.
 *
 * @param describe the message for the first difference: what differs, and what to do
 * @throws InvalidArgumentError on every rank alike; the group lives on
 */
export async function checkAgreement(
  mine: readonly string[],
  group: ProcessGroup,
  op: string,
  describe: (difference: Difference) => string,
): Promise<void> {
  if (group.size === 1) return;
  const all = await group.allGatherObjects(mine);
  const reference = all[0] as readonly string[];
  all.forEach((theirs, rank) => {
    const length = Math.max(theirs.length, reference.length);
    for (let index = 0; index < length; index++) {
      if (theirs[index] === reference[index]) continue;
      const message = describe({ rank, index, theirs: theirs[index], reference: reference[index] });
      throw new InvalidArgumentError(`${op}: ${message}`, { rank: group.rank, op, ranks: [rank] });
    }
  });
}

/** A tensor's dtype and shape as such a list has them, or 'none'. */
export function describeEntry(
  tensor: { readonly dtype: string; readonly shape: readonly number[] } | undefined,
): string {
  return tensor === undefined ? 'none' : `${tensor.dtype}[${tensor.shape.join(', ')}]`;
}
