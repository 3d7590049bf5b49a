/** What ended a group, and the errors that its calls get. */
import { systemClock } from '../../core/clock';
import { fromWire, toWire, type WireError } from '../../core/error-wire';
import { ClosedError, PeerLostError } from '../../core/errors';
import type { GroupRanks } from '../../core/group-ranks';
import type { ControlFailure } from '../control-plane';
import type { GrpcCall } from './grpc-call';

export interface GroupFailure {
  /** What ended the group, as the rank that found out says it. */
  readonly error: WireError;
  /** What later ClosedErrors name as their cause; null: `error`. */
  readonly cause: WireError | null;
  /** A rank without a call in flight gets `error` itself at its next call; then, as all others, ClosedError. */
  readonly isToldOnce: boolean;
}

interface CallPlace {
  readonly rank: number;
  readonly group: string;
  readonly members: GroupRanks;
  readonly op: string;
}

export function failureOf(error: Error, options: { isToldOnce?: boolean; cause?: Error } = {}): GroupFailure {
  const { isToldOnce = false, cause } = options;
  return { error: toWire(error), cause: cause === undefined ? null : toWire(cause), isToldOnce };
}

/** A call that was in flight when its group ended, and its deadline. */
interface CallInFlight {
  readonly info: CallPlace & { readonly sequence: number | undefined };
  readonly dueMs: number;
}

/**
 * A failure that another rank tells. Where a native library has broken that rank's whole process, this one can go on.
 */
export function failureOfPeer({ error, cause, isToldOnce }: GroupFailure): GroupFailure {
  return { error: errorOfPeer(error), cause: cause && errorOfPeer(cause), isToldOnce };
}

/** An error of another process, as it concerns this one. */
export function errorOfPeer(error: WireError): WireError {
  return {
    ...error,
    scope: error.code === 'LOCKSTEP_NATIVE' ? 'group' : error.scope,
    cause: error.cause && errorOfPeer(error.cause),
  };
}

/** The failure of a group, for those of this rank who wait for it beside its calls. */
export function controlFailureOf(failure: GroupFailure, place: Omit<CallPlace, 'op'>): ControlFailure {
  return {
    cause: fromWire(failure.cause ?? failure.error),
    errorFor: ({ op, sequence, dueMs }) => errorForCall(failure, { info: { ...place, op, sequence }, dueMs }),
  };
}

/**
 * The error of a call of this rank that was in flight. A collective that came after the one that failed is refused
 * like any later call: this rank had only not heard yet. But where its own deadline has passed too, a timeout is its own.
 */
export function errorForCall(failure: GroupFailure, { info, dueMs }: CallInFlight): Error {
  const { error } = failure;
  const { rank, op, sequence } = info;
  const isLater = sequence !== undefined && error.sequence !== null && sequence > error.sequence;
  const isTimedOut = error.code === 'LOCKSTEP_TIMEOUT' && dueMs <= systemClock.now();
  if (isLater && !isTimedOut) {
    return failedEarlier(failure, info);
  }
  return fromWire({ ...error, rank, op, sequence: sequence ?? error.sequence, stack: null });
}

/** The error of the first call after a failure that this rank was not told by a call in flight. */
export function errorTellingOnce({ error }: GroupFailure, rank: number, op: string): Error {
  return fromWire({ ...error, rank, op, stack: null });
}

/** The refusal of a call on a group that has failed before. */
export function failedEarlier(failure: GroupFailure, place: CallPlace): Error {
  const { rank, group, members, op } = place;
  const { ranks, globalRanks } = failure.error;
  return new ClosedError(
    `${op} on ${members.name(rank)}: group ${group} has failed and cannot be used any more; build another. Its first failure: ${failure.error.message}`,
    {
      rank,
      group,
      op,
      ranks: ranks ?? undefined,
      globalRanks: globalRanks ?? undefined,
      cause: fromWire(failure.cause ?? failure.error),
    },
  );
}

/** How a rank was lost, in words, and the error behind it. */
export interface Loss {
  readonly how: string;
  readonly cause: Error;
}

/** Its program threw `error`; in the words of the mock. */
export function lossByThrow(error: Error): Loss {
  return { how: `it threw ${error.name}: ${error.message}`, cause: error };
}

/** @param group its identity, and its ranks */
export function lostRankError(
  { id, ranks }: { readonly id: string; readonly ranks: GroupRanks },
  lostRank: number,
  { how, cause }: Loss,
): Error {
  const message = `${ranks.name(lostRank)} of group ${id} was lost: ${how}`;
  return new PeerLostError(message, { group: id, ...ranks.blame([lostRank]), cause });
}

/** `call` needs a rank that has closed the group. */
export function closedRankError(call: GrpcCall, closedRank: number): Error {
  const { group, members, rank } = call.info;
  return new PeerLostError(
    `${members.name(closedRank)} has closed group ${group}, and ${call.title} on ${members.name(rank)} needs it. Close a group when all its ranks are done with it.`,
    { group, ...members.blame([closedRank]) },
  );
}
