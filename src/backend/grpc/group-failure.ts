/** What ended a group, and the errors that its calls get. */
import { systemClock } from '../../core/clock';
import { fromWire, toWire, type WireError } from '../../core/error-wire';
import { ClosedError, CollectiveMismatchError, PeerLostError } from '../../core/errors';
import { describePointToPoint, mismatchMessage, type PointToPointCall } from '../call';
import type { GrpcCall } from './grpc-call';
import type { Answers } from './roll-call';

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
  readonly op: string;
}

export function failureOf(error: Error, options: { isToldOnce?: boolean; cause?: Error } = {}): GroupFailure {
  const { isToldOnce = false, cause } = options;
  return { error: toWire(error), cause: cause === undefined ? null : toWire(cause), isToldOnce };
}

/**
 * The error of a call of this rank that was in flight. A collective that came after the one that failed is refused
 * like any later call: this rank had only not heard yet. But where its own deadline has passed too, a timeout is its own.
 */
export function errorForCall(failure: GroupFailure, { info, dueMs }: GrpcCall): Error {
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
  const { rank, group, op } = place;
  return new ClosedError(
    `${op} on rank ${rank}: group ${group} has failed and cannot be used any more; build another. Its first failure: ${failure.error.message}`,
    { rank, group, op, cause: fromWire(failure.cause ?? failure.error) },
  );
}

export function lostRankError(group: string, lostRank: number, reason: Error): Error {
  return new PeerLostError(`rank ${lostRank} of group ${group} was lost: ${reason.message}`, {
    group,
    ranks: [lostRank],
    cause: reason,
  });
}

/** `call` needs a rank that has closed the group. */
export function closedRankError(call: GrpcCall, closedRank: number): Error {
  const { group, rank } = call.info;
  return new PeerLostError(
    `rank ${closedRank} has closed group ${group}, and ${call.title} on rank ${rank} needs it. Close a group when all its ranks are done with it.`,
    { group, ranks: [closedRank] },
  );
}

export function collectiveMismatchError(
  group: string,
  sequence: number,
  answers: Answers,
  detail: string | undefined,
): Error {
  const calls = answers.map((answer) => {
    const called = answer?.called ?? null;
    return called === null ? undefined : { description: called };
  });
  return new CollectiveMismatchError(mismatchMessage(group, sequence, calls, detail), { group, sequence });
}

export function pointToPointMismatchError(
  group: string,
  sender: { rank: number; call: PointToPointCall },
  receiver: { rank: number; call: PointToPointCall },
): Error {
  const message = [
    `a send and the receive that it meets, in group ${group}, disagree:`,
    ...[sender, receiver].map(({ rank, call }) => `  rank ${rank}: ${describePointToPoint(call)}`),
    'Both must name the same dtype and number of elements. The group cannot be used any more; build another.',
  ].join('\n');
  return new CollectiveMismatchError(message, { group });
}
