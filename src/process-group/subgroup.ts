/** How the ranks of a group agree on smaller groups. */
import type { Backend, CallOptions } from '../backend/backend';
import type { GroupChannel } from './group-channel';
import { damagedOnTheWay, invalidArgument } from './call-place';
import { checkMembers } from './member-list';

/** A new group as this rank sees it. */
export interface Subgroup {
  /** Ranks of the parent, in the order of the new group. */
  readonly members: readonly number[];
  /** Undefined on a rank that is not a member. */
  readonly backend: Backend | undefined;
}

/** A group of the given ranks, ascending. */
export async function splitRanks(
  channel: GroupChannel,
  ranks: readonly number[],
  options: CallOptions,
): Promise<Subgroup> {
  const members = checkMembers(ranks, channel.place('newGroup'));
  return { members, backend: await splitBackend(channel, members, options) };
}

/** One group for each color, and this rank's among them. */
export async function splitByColor(
  channel: GroupChannel,
  color: number | undefined,
  key: number,
  options: CallOptions,
): Promise<{ readonly subgroups: readonly Subgroup[]; readonly own: Subgroup | undefined }> {
  checkColor(channel, color, key);
  const choices = await gatherChoices(channel, color, key, options);
  const colors = [...new Set(choices.flatMap((choice) => (choice.color === undefined ? [] : [choice.color])))];
  colors.sort((a, b) => a - b);
  const subgroups: Subgroup[] = [];
  for (const each of colors) {
    const members = choices
      .filter((choice) => choice.color === each)
      .sort((a, b) => a.key - b.key || a.rank - b.rank)
      .map((choice) => choice.rank);
    subgroups.push({ members, backend: await splitBackend(channel, members, options) });
  }
  return { subgroups, own: color === undefined ? undefined : subgroups[colors.indexOf(color)] };
}

async function splitBackend(
  channel: GroupChannel,
  members: readonly number[],
  options: CallOptions,
): Promise<Backend | undefined> {
  try {
    return await channel.backend.split(members, options);
  } catch (thrown) {
    channel.noteFailure(thrown);
    throw thrown;
  }
}

interface Choice {
  readonly rank: number;
  readonly color: number | undefined;
  readonly key: number;
}

/** What every rank passed: three numbers each, the first 1 if it takes part. */
async function gatherChoices(
  channel: GroupChannel,
  color: number | undefined,
  key: number,
  options: CallOptions,
): Promise<readonly Choice[]> {
  const mine = Float64Array.of(color === undefined ? 0 : 1, color ?? 0, key);
  const all = new Float64Array(channel.size * mine.length);
  const call = { op: 'allGather', dtype: 'float64', counts: mine.length } as const;
  await channel.watch(call, channel.backend.allGather(mine, all, options));
  return Array.from({ length: channel.size }, (_unused, rank) => {
    const choice = all.subarray(rank * mine.length, (rank + 1) * mine.length);
    if (!choice.every(Number.isSafeInteger)) throw damagedOnTheWay(channel.place('split'), rank);
    const [takesPart, itsColor, itsKey] = choice;
    return { rank, color: takesPart === 1 ? itsColor : undefined, key: itsKey as number };
  });
}

function checkColor(channel: GroupChannel, color: number | undefined, key: number): void {
  const problem =
    color !== undefined && !Number.isSafeInteger(color)
      ? `color is ${String(color)}, expected a whole number, or undefined to stay out of every group`
      : Number.isSafeInteger(key)
        ? undefined
        : `key is ${String(key)}, expected a whole number`;
  if (problem === undefined) return;
  throw invalidArgument(channel.place('split'), problem);
}
