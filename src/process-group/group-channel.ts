import type { Backend } from '../backend/backend';
import type { CollectiveCall, PointToPointOp } from '../backend/call';
import { bytesSent } from '../backend/ledger';
import { systemClock } from '../core/clock';
import { asError, isLockstepError } from '../core/errors';
import type { GroupRanks } from '../core/group-ranks';
import type { Work } from '../core/work';
import type { CallPlace } from './call-place';
import { CallQueue, launchNow } from './call-queue';
import type { CollectiveStart, GroupEvents } from './events';
import type { GuardedEmitter } from './guarded-emitter';

/**
 * One rank's end of a group, for the code of this folder: the backend, and what its calls tell listeners.
 *
 * Every Work that the backend gives goes through `watch`. Without a listener that notes failures and nothing else: no
 * clock is read and no event made.
 */
export class GroupChannel {
  readonly backend: Backend;
  readonly name: string;
  readonly members: GroupRanks;
  /** The group's own listeners, then those of the world that it belongs to. */
  readonly #emitters: readonly GuardedEmitter<GroupEvents>[];
  readonly #queue = new CallQueue();
  #firstFailure: Error | undefined;
  #isClosed = false;

  constructor(
    backend: Backend,
    { name, members }: { readonly name: string; readonly members: GroupRanks },
    emitters: readonly GuardedEmitter<GroupEvents>[],
  ) {
    this.backend = backend;
    this.name = name;
    this.members = members;
    this.#emitters = emitters;
  }

  get rank(): number {
    return this.backend.rank;
  }

  get size(): number {
    return this.backend.worldSize;
  }

  /** What ended the group, as far as this rank has seen. */
  get firstFailure(): Error | undefined {
    return this.#firstFailure;
  }

  place(op: string): CallPlace {
    return { op, group: this.name, members: this.members, rank: this.rank, size: this.size };
  }

  /** Launch a call of one collective, when it is its turn: [Note: calls in steps]. `start` hands its Work to `watch`. */
  launch(op: string, start: () => Work): Work {
    return this.#queue.launch({ op, group: this.name, rank: this.rank }, start);
  }

  /** Launch a send or receive. Those are matched apart from the collectives, so they have no turn to wait for. */
  launchNow(op: PointToPointOp, start: () => Work): Work {
    return launchNow({ op, group: this.name, rank: this.rank }, start);
  }

  /** Run a call of several collectives, when it is its turn. */
  inSteps<T>(run: () => Promise<T>): Promise<T> {
    return this.#queue.inSteps(run);
  }

  /** Report a collective that has just been launched, and hand it on. */
  watch(call: CollectiveCall, work: Work): Work {
    return this.#watch(call.op, work, () => bytesSent(call, this.rank, this.size));
  }

  /** The same for sends and receives; `countBytes` says how many it sends. */
  watchPointToPoint(op: PointToPointOp, countBytes: () => number, work: Work): Work {
    return this.#watch(op, work, countBytes);
  }

  #watch(op: string, work: Work, countBytes: () => number): Work {
    const isHeard = this.#hasListener('collectiveStart') || this.#hasListener('collectiveEnd');
    if (!isHeard || wasRefused(work)) {
      work.onSettled(this.#noteOutcome);
      return work;
    }
    const start: CollectiveStart = {
      op,
      sequence: work.info.sequence,
      bytes: countBytes(),
      group: this.name,
      rank: this.rank,
    };
    this.#emit('collectiveStart', start);
    const startedMs = systemClock.now();
    work.onSettled((error) => {
      const durationMs = systemClock.now() - startedMs;
      this.#emitSoon('collectiveEnd', error === undefined ? { ...start, durationMs } : { ...start, durationMs, error });
      this.#noteOutcome(error);
    });
    return work;
  }

  /** Note what an operation that is no Work failed with. */
  noteFailure(thrown: unknown): void {
    this.#noteOutcome(asError(thrown));
  }

  /** End the group on every rank. */
  abort(reason: Error): void {
    this.backend.abort(reason);
    this.#poison(reason);
  }

  async close(): Promise<void> {
    const isFirst = !this.#isClosed;
    this.#isClosed = true;
    await this.backend.close();
    if (isFirst) this.#emit('closed', { group: this.name, rank: this.rank });
  }

  readonly #noteOutcome = (error: Error | undefined): void => {
    const failure = error === undefined || this.#isClosed ? undefined : poisonIn(error);
    if (failure !== undefined) this.#poison(failure);
  };

  #poison(error: Error): void {
    if (this.#firstFailure !== undefined) return;
    this.#firstFailure = error;
    const at = { group: this.name, rank: this.rank, error };
    if (isLockstepError(error, 'LOCKSTEP_PEER_LOST')) {
      this.#emitSoon('peerLost', { ...at, ranks: error.context.ranks ?? [] });
    }
    this.#emitSoon('poisoned', at);
  }

  #hasListener(name: keyof GroupEvents): boolean {
    return this.#emitters.some((emitter) => emitter.hasListener(name));
  }

  #emit<K extends keyof GroupEvents>(name: K, event: Parameters<GroupEvents[K]>[0]): void {
    for (const emitter of this.#emitters) emitter.emit(name, event);
  }

  /**
   * In the next microtask, before anybody who awaits the Work goes on: a Work settles in the middle of another
   * rank's call, and a listener may do as it likes.
   */
  #emitSoon<K extends keyof GroupEvents>(name: K, event: Parameters<GroupEvents[K]>[0]): void {
    if (this.#hasListener(name)) void Promise.resolve().then(() => this.#emit(name, event));
  }
}

/** The failure that ended the group, if `error` says that it has ended. */
function poisonIn(error: Error): Error | undefined {
  if (!isLockstepError(error)) return error;
  if (error.code === 'LOCKSTEP_CLOSED') return firstFailureIn(error);
  return error.scope === 'call' ? undefined : error;
}

/** What ended a group, from the error of a later call: ClosedErrors carry it as their cause. */
export function firstFailureIn(error: Error): Error | undefined {
  let failure: unknown = error;
  while (isLockstepError(failure, 'LOCKSTEP_CLOSED')) failure = failure.cause;
  return failure === undefined ? undefined : asError(failure);
}

/** True if the call was refused before anything was sent; such a call is no collective. */
function wasRefused(work: Work): boolean {
  return work.error !== undefined && isLockstepError(work.error) && work.error.scope === 'call';
}
