/** What the ranks of one group share: where they meet, and what ended the group. */
import { ClosedError, InvalidArgumentError, PeerLostError, isLockstepError } from '../../core/errors';
import { GroupRanks } from '../../core/group-ranks';
import { invariant } from '../../core/invariant';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { CollectiveInFlight, Meeting } from './collective';
import type { BufferChange } from './in-flight';
import type { CallOrigin, MockCall } from './mock-call';
import type { MockRank } from './mock-rank';
import type { MockWorld } from './mock-world';
import { PointToPointInFlight, PointToPointQueues } from './point-to-point';

/** A call of the group, or, of the group of all ranks, a wait in the store. */
type FailedCall = Pick<MockCall, 'sequence' | 'title'> & { readonly op: string };

/** The error for a rank of the group; `call` is what it has in flight, if anything. */
export type ErrorForRank = (rank: number, call: FailedCall | undefined) => Error;

interface FailOptions {
  /**
   * The rank that is gone. The others are told so once each, at their next call if they have none in flight, before
   * they get ClosedError like everybody; and what they are told is the first failure, not what that rank itself gets.
   */
  readonly lostRank?: number;
  /** What later ClosedErrors name as their cause; default: the error of the first rank. */
  readonly cause?: Error;
}

interface GroupFailure {
  /** What ended the group. */
  readonly first: Error;
  /** The cause of every later ClosedError: `first`, or the reason of an abort. */
  readonly cause: Error;
  readonly tellOnce: ErrorForRank | undefined;
  readonly told: Set<number>;
}

export class MockGroup {
  readonly world: MockWorld;
  /** The parent's identity and a creation counter; the same on all ranks. */
  readonly id: string;
  /** In rank order. */
  readonly members: readonly MockRank[];
  readonly ranks: GroupRanks;
  readonly #meetings = new Map<number, Meeting>();
  readonly #queues: PointToPointQueues;
  readonly #nextSequence: number[];
  readonly #closedRanks = new Set<number>();
  #numChildren = 0;
  #failure: GroupFailure | undefined;

  constructor(world: MockWorld, id: string, members: readonly MockRank[]) {
    this.world = world;
    this.id = id;
    this.members = members;
    this.ranks = new GroupRanks(members.map((member) => member.globalRank));
    this.#nextSequence = new Array<number>(members.length).fill(0);
    this.#queues = new PointToPointQueues(this);
    world.groups.add(this);
  }

  get size(): number {
    return this.members.length;
  }

  memberAt(rank: number): MockRank {
    const member = this.members[rank];
    invariant(member !== undefined, `group ${this.id} has no rank ${rank}`);
    return member;
  }

  /** True once a failure has ended it. */
  get hasFailed(): boolean {
    return this.#failure !== undefined;
  }

  isClosedBy(rank: number): boolean {
    return this.#closedRanks.has(rank);
  }

  /** A collective of this rank, in flight. */
  startCollective(origin: CallOrigin, checked: CheckedCollective): CollectiveInFlight {
    const sequence = this.#nextSequence[origin.rank] as number;
    this.#nextSequence[origin.rank] = sequence + 1;
    let meeting = this.#meetings.get(sequence);
    if (meeting === undefined) {
      meeting = new Meeting(this, sequence);
      this.#meetings.set(sequence, meeting);
    }
    const call = new CollectiveInFlight(origin, checked, meeting);
    this.world.start(call, () => meeting.arrive(call));
    return call;
  }

  /** A send, receive or batch of this rank, in flight. */
  startPointToPoint(origin: CallOrigin, checked: CheckedPointToPoint): PointToPointInFlight {
    const call = new PointToPointInFlight(origin, checked);
    this.world.start(call, () => this.#queues.arrive(call));
    return call;
  }

  /** A collective is complete; nobody will look for it again. */
  retire(meeting: Meeting): void {
    this.#meetings.delete(meeting.sequence);
  }

  makeChild(ranks: readonly number[]): MockGroup {
    const id = `${this.id}/${this.#numChildren++}`;
    return new MockGroup(
      this.world,
      id,
      ranks.map((rank) => this.memberAt(rank)),
    );
  }

  /** Why a new call of `rank` cannot start, if it cannot. */
  refusal(rank: number, op: string): Error | undefined {
    if (this.#failure === undefined && this.#closedRanks.size === 0) return undefined;
    const context = { rank, group: this.id, op };
    if (this.#closedRanks.has(rank)) {
      const message = `${op} on ${this.ranks.name(rank)}: this rank has closed group ${this.id}. Make a new group.`;
      return new ClosedError(message, { ...context, ...this.ranks.blame([rank]), cause: this.#failure?.cause });
    }
    if (this.#failure === undefined) return undefined;
    const { cause, first, tellOnce, told } = this.#failure;
    if (tellOnce !== undefined && !told.has(rank)) {
      told.add(rank);
      return tellOnce(rank, undefined);
    }
    const message = `${op} on ${this.ranks.name(rank)}: group ${this.id} has failed and cannot be used any more; build another. Its first failure: ${first.message}`;
    const { ranks, globalRanks } = isLockstepError(first) ? first.context : {};
    return new ClosedError(message, { ...context, ranks, globalRanks, cause });
  }

  /** End the group: fail all calls in flight, each with its own error, and refuse all later ones. */
  fail(errorFor: ErrorForRank, { lostRank, cause }: FailOptions = {}): void {
    if (this.#failure !== undefined) return;
    const calls = this.#callsInFlight();
    const witness = calls.find((call) => call.rank !== lostRank);
    const first = errorFor(witness?.rank ?? (lostRank === 0 ? 1 % this.size : 0), witness);
    const tellOnce = lostRank === undefined ? undefined : errorFor;
    this.#failure = { first, cause: cause ?? first, tellOnce, told: new Set() };
    for (const call of calls) {
      this.#failure.told.add(call.rank);
      call.fail(call === witness ? first : errorFor(call.rank, call));
    }
    if (this === this.world.root) {
      const errorForWait = (rank: number, op: string): Error =>
        errorFor(rank, { op, sequence: undefined, title: 'a call' });
      this.world.store.endWaits(cause ?? first, errorForWait);
    }
    this.#meetings.clear();
  }

  /** A member is gone for good. */
  failByLostRank(lost: MockRank, reason: string, cause: Error): void {
    const lostRank = this.members.indexOf(lost);
    this.fail(
      (rank, call) => {
        const message = `${this.ranks.name(lostRank)} of group ${this.id} was lost: ${reason}`;
        const { op, sequence } = call ?? {};
        const context = { rank, group: this.id, op, sequence, ...this.ranks.blame([lostRank]), cause };
        return rank === lostRank ? new ClosedError(message, context) : new PeerLostError(message, context);
      },
      { lostRank },
    );
  }

  /** A rank leaves. Calls in flight that need it fail, its own too: unless it turns out to leave because it threw. */
  close(rank: number): void {
    if (this.#closedRanks.has(rank)) return;
    const calls = this.#callsInFlight();
    this.#closedRanks.add(rank);
    if (calls.some((call) => call.rank === rank || call.missingRanks().includes(rank))) {
      this.world.decideLater(() => this.failByClosedRank(rank));
    }
    if (this.#closedRanks.size === this.size) this.world.groups.delete(this);
  }

  /** A call needs a rank that has closed the group. */
  failByClosedRank(closedRank: number): void {
    this.fail(
      (rank, call) => {
        const { op = 'a call', sequence } = call ?? {};
        const context = { rank, group: this.id, op, sequence, ...this.ranks.blame([closedRank]) };
        if (rank === closedRank) {
          return new ClosedError(
            `${op} on ${this.ranks.name(rank)}: this rank closed group ${this.id} before it was done.`,
            context,
          );
        }
        return new PeerLostError(
          `${this.ranks.name(closedRank)} has closed group ${this.id}, and ${call?.title ?? op} on ${this.ranks.name(rank)} needs it. Close a group when all its ranks are done with it.`,
          context,
        );
      },
      { lostRank: closedRank },
    );
  }

  /** The lowest rank that a new call would wait for in vain, because it has closed the group. */
  closedRankNeededBy(call: MockCall): number | undefined {
    if (this.#closedRanks.size === 0) return undefined;
    return call.missingRanks().find((rank) => this.#closedRanks.has(rank));
  }

  changedBufferError(call: MockCall, change: BufferChange): Error {
    const { op, sequence, rank } = call;
    const advice = 'Leave the buffers of a call alone until its Work has settled (await it first).';
    const buffer = change.use === 'receive' ? 'the buffer that it receives into' : 'its buffer';
    const message = `${call.title}, on ${this.ranks.name(rank)}: ${buffer} was ${describeChange(change)}. ${advice}`;
    return new InvalidArgumentError(message, { rank, group: this.id, op, sequence });
  }

  /** The memory of a buffer is gone, and what was in it is not known: nobody can get a result. */
  failByLostMemory(lost: MockCall, change: BufferChange): void {
    const cause = this.changedBufferError(lost, change);
    this.fail(
      (rank, call) => {
        if (call === lost) return cause;
        const message = `${this.ranks.name(lost.rank)} of group ${this.id} cannot take part: ${cause.message}`;
        const { op, sequence } = call ?? {};
        const context = { rank, group: this.id, op, sequence, ...this.ranks.blame([lost.rank]), cause };
        return rank === lost.rank ? new ClosedError(message, context) : new PeerLostError(message, context);
      },
      { lostRank: lost.rank },
    );
  }

  #callsInFlight(): MockCall[] {
    return this.members.flatMap((member) =>
      [...member.calls].filter((call) => call.group === this && !call.isComplete),
    );
  }
}

function describeChange({ what }: BufferChange): string {
  switch (what) {
    case 'detached':
      return 'detached while it was in flight: its memory was transferred to a worker or by structuredClone';
    case 'resized':
      return 'resized while it was in flight';
    default:
      return `changed while it was in flight; the first change is at element ${what}`;
  }
}
