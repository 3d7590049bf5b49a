/** Who has come to the job: the store's side of the rendezvous. Knows nothing of connections. */
import { CollectiveTimeoutError, InvalidArgumentError, PeerLostError, type LockstepError } from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import type { PeerAddress } from './endpoint';
import { rankList } from './rank-list';

/** Told once: nothing if every rank is connected to all others, or why the world cannot form. */
export type StartListener = (failure: LockstepError | undefined) => void;

/** Told once: the addresses of all ranks, by rank, or why the job cannot start. */
export type JoinListener = (outcome: readonly PeerAddress[] | LockstepError) => void;

interface Member {
  readonly address: PeerAddress;
  /** Undefined once told. */
  listener: JoinListener | undefined;
}

/**
 * The ranks of one generation of a job, until all are connected to each other or the job has failed.
 *
 * [Note: failed start] What keeps one rank from joining keeps all from starting, so every rank that waits, or comes
 * later, is told the same reason at once. A second process with a rank that is taken is the exception: it alone is
 * refused, since the job needs nothing of it. That goes on while the ranks that have come connect to each other: a rank
 * that gives up says why before it closes its connections, so that the others do not take it for the culprit.
 */
export class Membership {
  readonly #worldSize: number;
  readonly #members = new Map<number, Member>();
  /** What processes that were turned away had wrong, for the message about ranks that never came. */
  readonly #refusals: string[] = [];
  readonly #connected = new Set<number>();
  readonly #startListeners: StartListener[] = [];
  /** Ranks that know of the failure, or are gone. */
  readonly #informed = new Set<number>();
  #onAllInformed: () => void = () => undefined;
  #failure: LockstepError | undefined;

  constructor(worldSize: number) {
    this.#worldSize = worldSize;
  }

  get isComplete(): boolean {
    return this.#members.size === this.#worldSize;
  }

  /** Every rank is connected to all others: from now on, links tell of losses. */
  get isStarted(): boolean {
    return this.#connected.size === this.#worldSize;
  }

  get missingRanks(): number[] {
    return Array.from({ length: this.#worldSize }, (_unused, rank) => rank).filter((rank) => !this.#members.has(rank));
  }

  /** @throws InvalidArgumentError if the rank is taken; the failure of the job, if it has failed */
  join(address: PeerAddress, listener: JoinListener): void {
    const { rank } = address;
    if (this.#members.has(rank)) throw takenRank(rank);
    if (this.#failure !== undefined) {
      this.#noteInformed(rank);
      throw this.#failure;
    }
    this.#members.set(rank, { address, listener });
    if (!this.isComplete) return;
    const addresses = [...this.#members.values()].map((member) => member.address).sort((a, b) => a.rank - b.rank);
    this.#tellAll(addresses);
  }

  /** The time of rank `rank` is over. */
  expire(rank: number, timeoutMs: number): void {
    const missing = this.missingRanks;
    const refusals = this.#refusals.length === 0 ? '' : ` Turned away so far: ${this.#refusals.join('; ')}.`;
    this.fail(
      new CollectiveTimeoutError(
        `rendezvous: ${rankList(missing)} of ${this.#worldSize} did not join within the ${timeoutMs} ms that rank ${rank} waited.${refusals} Check that every rank was started, and with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE.`,
        { op: 'join', rank, ranks: missing },
      ),
    );
  }

  /** `listener` is told as soon as every rank is connected, or it is known that the world cannot form. */
  whenStarted(rank: number, listener: StartListener): void {
    const tell = (failure: LockstepError | undefined): void => {
      listener(failure);
      if (failure !== undefined) this.#noteInformed(rank);
    };
    if (this.#failure !== undefined || this.isStarted) tell(this.#failure);
    else this.#startListeners.push(tell);
  }

  /** Rank `rank` is connected to all others. */
  connected(rank: number): void {
    this.#connected.add(rank);
    if (this.isStarted && this.#failure === undefined) this.#tellStart(undefined);
  }

  /** Rank `rank` cannot connect to the others. */
  giveUp(rank: number, reason: LockstepError): void {
    if (!this.#members.has(rank) || this.isStarted) return;
    this.#fail(reason);
  }

  /** The time that rank `rank` gives the others to connect is over. */
  expireStart(rank: number, timeoutMs: number): void {
    const missing = [...this.#members.keys()].filter((member) => !this.#connected.has(member)).sort((a, b) => a - b);
    this.#fail(
      new CollectiveTimeoutError(
        `rendezvous: ${rankList(missing)} of ${this.#worldSize} did not connect to all others within the ${timeoutMs} ms that rank ${rank} waited. Their processes are stopped or stuck, or wait for one that is.`,
        { op: 'connect', rank, ranks: missing },
      ),
    );
  }

  /** The process of `rank` is gone; means nothing once all are connected, when links tell of losses. */
  lose(rank: number, how: string): void {
    if (this.isStarted || !this.#members.has(rank)) return;
    this.#noteInformed(rank);
    const when = this.isComplete
      ? `before all ${this.#worldSize} ranks were connected`
      : `before all ${this.#worldSize} ranks had joined (missing: ${rankList(this.missingRanks)})`;
    this.#fail(
      new PeerLostError(`rendezvous: rank ${rank} ${how} ${when}. See what it says; the job has to be started again.`, {
        op: 'join',
        ranks: [rank],
      }),
    );
  }

  /** A process was turned away before it could join; remembered for the message about those that never came. */
  noteRefusal(what: string): void {
    const refusal = withoutFullStop(what);
    if (this.#refusals.length < 8 && !this.#refusals.includes(refusal)) this.#refusals.push(refusal);
  }

  /** What keeps a rank from joining; means nothing once all have come. */
  fail(reason: LockstepError): void {
    if (!this.isComplete) this.#fail(reason);
  }

  /** Tell all that wait, and all that come later, that the job cannot start. The first reason is the one that counts. */
  #fail(reason: LockstepError): void {
    if (this.#failure !== undefined) return;
    this.#failure = reason;
    this.#tellAll(reason);
    this.#tellStart(reason);
  }

  /** If the job has failed, `callback` is called once every rank knows, or is gone. */
  whenAllInformed(callback: () => void): void {
    this.#onAllInformed = callback;
    if (this.#failure === undefined || this.#informed.size === this.#worldSize) callback();
  }

  #noteInformed(rank: number): void {
    this.#informed.add(rank);
    if (this.#informed.size === this.#worldSize) this.#onAllInformed();
  }

  #tellStart(failure: LockstepError | undefined): void {
    for (const listener of this.#startListeners.splice(0)) listener(failure);
  }

  #tellAll(outcome: readonly PeerAddress[] | LockstepError): void {
    for (const [rank, member] of this.#members) {
      const { listener } = member;
      member.listener = undefined;
      listener?.(outcome);
      if (listener !== undefined && 'code' in outcome) this.#noteInformed(rank);
    }
  }
}

function takenRank(rank: number): InvalidArgumentError {
  return new InvalidArgumentError(
    `rendezvous: rank ${rank} of this job is taken by another process, which goes on. Two processes were started with RANK=${rank}, or one was started again without a new LOCKSTEP_GENERATION.`,
    { op: 'join', rank, ranks: [rank] },
  );
}
