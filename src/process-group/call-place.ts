/** Where a call was made, for the messages of its errors. */
import { withoutFullStop } from '../core/full-stop';
import type { GroupRanks } from '../core/group-ranks';
import { InvalidArgumentError, NotInGroupError, PeerLostError, type ErrorContext } from '../core/errors';

export interface CallPlace {
  /** 'newGroup', 'broadcastObject', ... */
  readonly op: string;
  readonly group: string;
  readonly members: GroupRanks;
  /** In the group. */
  readonly rank: number;
  readonly size: number;
}

/** 'newGroup on rank 1 of group world', which opens the message. */
export function describePlace(place: CallPlace): string {
  return `${place.op} on ${place.members.name(place.rank)} of group ${place.group}`;
}

export function contextOf(place: CallPlace): ErrorContext {
  return { op: place.op, group: place.group, rank: place.rank };
}

/** @param problem what was expected, what came and what to do, without the last full stop */
export function invalidArgument(place: CallPlace, problem: string): InvalidArgumentError {
  return new InvalidArgumentError(`${describePlace(place)}: ${problem}.`, contextOf(place));
}

/** What `from`, a rank of the group, sent cannot have been what arrived here. */
export function damagedOnTheWay(place: CallPlace, from: number, cause?: Error): PeerLostError {
  const detail = cause === undefined ? '' : ` (${withoutFullStop(cause.message)})`;
  return new PeerLostError(
    `${describePlace(place)}: what ${place.members.name(from)} sent arrived damaged${detail}. Suspect the transport, the memory, an injected 'corrupt' fault, or ranks that run different versions of Node. The group cannot be trusted any more; build another.`,
    { ...contextOf(place), ...place.members.blame([from]), cause },
  );
}

/** @param members global ranks */
export function notInGroup(op: string, group: string, members: readonly number[]): NotInGroupError {
  const who = members.length === 0 ? 'it has no ranks' : `its members are the global ranks ${members.join(', ')}`;
  return new NotInGroupError(
    `${op}: this rank is not in group ${group} (${who}). Ask group.isMember before you call its collectives.`,
    { op, group, rank: -1 },
  );
}
