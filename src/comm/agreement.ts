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
  await checkListsAgree([mine], group, op, (_list, difference) => describe(difference));
}

/**
 * The same for several lists at once, of any lengths: a difference in an earlier one counts first.
 * @param describe gets the number of the list as well
 */
export async function checkListsAgree(
  mine: readonly (readonly string[])[],
  group: ProcessGroup,
  op: string,
  describe: (list: number, difference: Difference) => string,
): Promise<void> {
  if (group.size === 1) return;
  const all = await group.allGatherObjects(mine);
  for (const list of mine.keys()) {
    const reference = all[0]?.[list] ?? [];
    for (const [rank, lists] of all.entries()) {
      const theirs = lists[list] ?? [];
      const index = firstDifference(theirs, reference);
      if (index === undefined) continue;
      const message = describe(list, { rank, index, theirs: theirs[index], reference: reference[index] });
      throw new InvalidArgumentError(`${op}: ${message}`, { rank: group.rank, op, ranks: [rank] });
    }
  }
}

function firstDifference(a: readonly string[], b: readonly string[]): number | undefined {
  const longer = a.length > b.length ? a : b;
  const index = longer.findIndex((_entry, i) => a[i] !== b[i]);
  return index < 0 ? undefined : index;
}

/** A tensor's dtype and shape as such a list has them, or 'none'. */
export function describeEntry(
  tensor: { readonly dtype: string; readonly shape: readonly number[] } | undefined,
): string {
  return tensor === undefined ? 'none' : `${tensor.dtype}[${tensor.shape.join(', ')}]`;
}
