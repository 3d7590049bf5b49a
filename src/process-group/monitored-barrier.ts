/**
 * A barrier that says who is missing.
 *
 * Each rank exchanges an empty message with each other rank, so that every rank sees for itself who has arrived, whoever is
 * missing: there is no coordinator that could be the missing one. (On NCCL a byte would wait behind one for a rank that is
 * missing; nothing to move does not.) That takes size * (size - 1) messages: it is for
 * finding out what is wrong, not for the training loop. Peers are visited in ascending order and each exchange is one
 * batch, so that also a backend that runs them one after the other cannot deadlock.
 */
import type { Backend, CallOptions } from '../backend/backend';
import { runDetached } from '../core/context';
import { checkTimeout } from '../core/deadline';
import {
  CollectiveTimeoutError,
  DeadlockError,
  PeerLostError,
  asError,
  isLockstepError,
  type ErrorContext,
} from '../core/errors';
import { withFullStop } from '../core/full-stop';
import type { Work } from '../core/work';
import { contextOf, describePlace, type CallPlace } from './call-place';
import { firstFailureIn, type GroupChannel } from './group-channel';

const OP = 'monitoredBarrier';
/** Long enough to find a rank that is a little late, short enough to wait for at a prompt. */
const DEFAULT_MONITORED_TIMEOUT_MS = 30_000;
/** Apart from the tags that people choose. */
const TAG = 0x6d626172;

/**
 * Settles once every rank has called it, at most `timeoutMs` after this rank has.
 *
 * @throws CollectiveTimeoutError (or PeerLostError, DeadlockError, if it is known sooner) naming all ranks that did not
 * arrive; the group has ended, on the ranks that did arrive too
 */
export async function monitoredBarrier(channel: GroupChannel, options: CallOptions): Promise<void> {
  const timeoutMs = checkTimeout(options.timeoutMs, DEFAULT_MONITORED_TIMEOUT_MS);
  const { backend, rank, size } = channel;
  if (size === 1) return channel.watch({ op: 'barrier' }, backend.barrier(options));
  const peers = Array.from({ length: size }, (_unused, peer) => peer).filter((peer) => peer !== rank);
  const exchanges = peers.map((peer) => exchange(backend, peer, { ...options, timeoutMs: timeoutMs * 2 }));
  // The waits expire, not the exchanges: an exchange that fails ends the group before all the missing are known. Their
  // timers are set outside this rank's context: all they can do is fail, so they are no reason to take a rank that
  // waits here for one that may go on, and the mock finds a deadlock at once.
  const waits = exchanges.map((work) => runDetached(() => work.wait({ timeoutMs })));
  const outcomes = await Promise.allSettled(waits);
  const failures = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [asError(outcome.reason)] : []));
  const [first] = failures;
  if (first === undefined) return;
  const missing = peers.filter((_peer, index) => outcomes[index]?.status === 'rejected');
  throw report(channel, missing, first, timeoutMs);
}

function exchange(backend: Backend, peer: number, options: CallOptions): Work {
  return backend.batch(
    [
      { op: 'send', data: new Uint8Array(0), peer, tag: TAG },
      { op: 'recv', data: new Uint8Array(0), peer, tag: TAG },
    ],
    options,
  );
}

/** Tell the other ranks of `missing`, unless one of them has been faster, and give the error to reject with. */
function report(channel: GroupChannel, missing: readonly number[], failure: Error, timeoutMs: number): Error {
  const place = channel.place(OP);
  const closed = isLockstepError(failure, 'LOCKSTEP_CLOSED') || isLockstepError(failure, 'LOCKSTEP_INVALID_ARGUMENT');
  if (closed) {
    channel.noteFailure(failure);
    return reportOfAnotherRank(failure, place) ?? failure;
  }
  const error = errorLike(failure, place, missing, timeoutMs);
  channel.abort(error);
  return error;
}

function errorLike(failure: Error, place: CallPlace, missing: readonly number[], timeoutMs: number): Error {
  const context: ErrorContext = { ...contextOf(place), ...place.members.blame(missing), cause: failure };
  const message = (how: string, why: string): string =>
    `${describePlace(place)}: ${place.members.names(missing)} did not arrive${how}; all other ranks did. ${why}The group has ended; build another.`;
  if (isLockstepError(failure, 'LOCKSTEP_PEER_LOST')) {
    return new PeerLostError(message('', `The wait ended early: ${withFullStop(failure.message)} `), context);
  }
  if (isLockstepError(failure, 'LOCKSTEP_DEADLOCK')) {
    return new DeadlockError(message(' and never will', `${withFullStop(failure.message)} `), context);
  }
  return new CollectiveTimeoutError(message(` within ${timeoutMs} ms`, ''), context);
}

/** The same error as on the rank that found out first, if that is what ended the group. */
function reportOfAnotherRank(failure: Error, place: CallPlace): Error | undefined {
  const cause = firstFailureIn(failure);
  if (!isLockstepError(cause) || cause.context.op !== OP) return undefined;
  const { ranks, globalRanks } = cause.context;
  const context: ErrorContext = { ...contextOf(place), ranks, globalRanks, cause };
  switch (cause.code) {
    case 'LOCKSTEP_TIMEOUT':
      return new CollectiveTimeoutError(cause.message, context);
    case 'LOCKSTEP_PEER_LOST':
      return new PeerLostError(cause.message, context);
    case 'LOCKSTEP_DEADLOCK':
      return new DeadlockError(cause.message, context);
    default:
      return undefined;
  }
}
