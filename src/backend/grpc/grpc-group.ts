/** One rank's end of a group: its calls in flight, what arrives for them, and what ended the group. */
import { fromWire } from '../../core/error-wire';
import { ClosedError, InternalError, asError } from '../../core/errors';
import { GroupRanks } from '../../core/group-ranks';
import type { Place } from '../algorithms/schedule';
import type { DataBuffer } from '../../core/dtype';
import type { CallSite } from '../../core/call-site';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import type { ControlFailure } from '../control-plane';
import type { AnnouncedMessagesInFlight } from './announced-messages';
import { announcementPlan } from './announcement-plan';
import type { CollectiveInFlight } from './collective-in-flight';
import { dataPlan, type CollectivePlan } from './collective-plan';
import { decodeControl, encodeControl, type ControlMessage } from './control-message';
import { groupKey, groupWordsOf, type Words } from './fingerprint';
import { FrameKind, type FrameHeader } from './frame';
import { GroupCollectives } from './group-collectives';
import {
  closedRankError,
  controlFailureOf,
  errorForCall,
  errorOfPeer,
  errorTellingOnce,
  failedEarlier,
  failureOf,
  failureOfPeer,
  lossByThrow,
  lostRankError,
  type GroupFailure,
  type Loss,
} from './group-failure';
import { GroupMessages, type GroupMessagesHost, type MessagesOp } from './group-messages';
import type { GrpcCall, GrpcCallOp } from './grpc-call';
import type { GrpcWorld } from './grpc-world';
import type { MessagesInFlight } from './messages-in-flight';
import type { PointToPointInFlight } from './point-to-point';
import { RollCalls, type Answer } from './roll-call';

export class GrpcGroup {
  readonly id: string;
  /** Ranks of the world, by rank of the group. */
  readonly members: readonly number[];
  readonly ranks: GroupRanks;
  readonly place: Place;
  readonly words: Words;
  readonly #world: GrpcWorld;
  readonly #collectives: GroupCollectives;
  readonly #messages: GroupMessages;
  readonly #rollCalls: RollCalls;
  /** Ranks that have closed the group, with the number of collectives that each completed. */
  readonly #closedRanks = new Map<number, number>();
  readonly #failureListeners: ((failure: ControlFailure) => void)[] = [];
  #numChildren = 0;
  #failure: GroupFailure | undefined;
  /** This rank has been told `#failure` by a call in flight or by its next one. */
  #isTold = false;
  #isClosed = false;

  constructor(world: GrpcWorld, id: string, members: readonly number[]) {
    this.id = id;
    this.members = members;
    this.ranks = new GroupRanks(members);
    this.words = groupWordsOf(id);
    this.place = { rank: members.indexOf(world.rank), size: members.length };
    this.#world = world;
    const shared: GroupMessagesHost = {
      id,
      ranks: this.ranks,
      rank: this.rank,
      words: this.words,
      post: (peer, message) => world.post(this.members[peer] as number, message),
      rollCall: (question, onEnd) => this.#rollCalls.start(question, onEnd),
      onEnded: (call) => world.deadlines.delete(call),
      fail: (error) => this.fail(failureOf(error)),
    };
    this.#collectives = new GroupCollectives({ ...shared, place: this.place, scratchPool: world.scratchPool });
    this.#messages = new GroupMessages(shared);
    this.#rollCalls = new RollCalls({
      ...this.place,
      ask: (peer, questionId, sequence) => this.#tell(peer, { type: 'question', id: questionId, sequence }),
      answer: (sequence) => this.#answer(sequence),
    });
  }

  get rank(): number {
    return this.place.rank;
  }

  get size(): number {
    return this.place.size;
  }

  get key(): number {
    return groupKey(this.words.high, this.words.low);
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** The first call in which this rank waits for others, in words; null if there is none. */
  get waitsIn(): string | null {
    const [call] = [...this.#collectives.inFlight.filter(({ isRunDone }) => !isRunDone), ...this.#messages.inFlight];
    return call === undefined ? null : call.title;
  }

  /** Why a new call cannot start, if it cannot. */
  refusal(op: GrpcCallOp): Error | undefined {
    const place = { rank: this.rank, group: this.id, op };
    const name = this.ranks.name(this.rank);
    if (this.#isClosed) {
      const cause = this.#failure === undefined ? undefined : fromWire(this.#failure.cause ?? this.#failure.error);
      const message = `${op} on ${name}: this rank has closed group ${this.id}. Make a new group.`;
      return new ClosedError(message, { ...place, ...this.ranks.blame([this.rank]), cause });
    }
    if (this.#failure === undefined) return undefined;
    if (this.#failure.isToldOnce && !this.#isTold) {
      this.#isTold = true;
      return errorTellingOnce(this.#failure, this.rank, op);
    }
    return failedEarlier(this.#failure, { ...place, members: this.ranks });
  }

  startCollective(checked: CheckedCollective, callSite?: CallSite): CollectiveInFlight {
    return this.#startCollective(checked, dataPlan(checked, this.place), callSite);
  }

  /** All of a collective but its data. */
  announce(checked: CheckedCollective<DataBuffer>, callSite?: CallSite): CollectiveInFlight {
    return this.#startCollective(checked, announcementPlan(checked.call, this.place), callSite);
  }

  startPointToPoint(op: MessagesOp, checked: CheckedPointToPoint, callSite?: CallSite): MessagesInFlight {
    return this.#started(this.#messages.start(op, checked, callSite));
  }

  /** All of some messages but their data. */
  announceMessages(op: MessagesOp, checked: CheckedPointToPoint<DataBuffer>, callSite?: CallSite): MessagesInFlight {
    return this.#started(this.#messages.announce(op, checked, callSite));
  }

  /** The identity of the group that the split now started makes: the same on all ranks, which split in the same order. */
  nextChildId(): string {
    return `${this.id}/${this.#numChildren++}`;
  }

  /** End the group on all ranks because of `reason`. */
  abort(reason: Error): void {
    if (this.#isClosed) return;
    const message = `group ${this.id} was aborted by ${this.ranks.name(this.rank)}: ${reason.message}`;
    const context = { group: this.id, ...this.ranks.blame([this.rank]), cause: reason };
    this.fail(failureOf(new ClosedError(message, context), { cause: reason }));
  }

  /** Fail all calls in flight, each with its own error, refuse all later ones, and tell the other ranks. */
  fail(failure: GroupFailure, isTellingOthers = true): void {
    if (this.#failure !== undefined || this.#isClosed) return;
    this.#failure = failure;
    this.#world.logger.info(`rank ${this.rank}: group ${this.id} has failed: ${failure.error.message}`);
    this.#collectives.stop();
    this.#rollCalls.cancel();
    if (isTellingOthers) this.#tellAll({ type: 'poison', ...failure });
    const calls = this.#callsInFlight();
    this.#isTold = calls.length > 0;
    for (const call of calls) call.fail(errorForCall(failure, call));
    const told = controlFailureOf(failure, this.#at);
    for (const listener of this.#failureListeners.splice(0)) listener(told);
  }

  /** `listener` is told what ended the group, now if it has ended; not of a `close` here. */
  onFailed(listener: (failure: ControlFailure) => void): void {
    if (this.#failure === undefined) this.#failureListeners.push(listener);
    else listener(controlFailureOf(this.#failure, this.#at));
  }

  /** The program was told what ended the group, by a call that is not one of this group. */
  noteTold(): void {
    this.#isTold = true;
  }

  /** Ranks that do not answer within `limitMs`; `onEnd` is not called where the group ends first. */
  findSilent(limitMs: number, onEnd: (silentRanks: readonly number[]) => void): void {
    const peers = this.members.map((_unused, rank) => rank);
    this.#rollCalls.start({ sequence: null, peers, limitMs }, (answers) =>
      onEnd(peers.filter((rank) => answers[rank] === undefined)),
    );
  }

  /** A member is gone for good. */
  noteLost(worldRank: number, loss: Loss): void {
    this.fail(failureOf(lostRankError(this, this.#rankOf(worldRank), loss), { isToldOnce: true }));
  }

  /** A member has said goodbye; as if it had closed the group, unless it has done so. */
  noteDeparted(worldRank: number): void {
    this.#noteClosed(this.#rankOf(worldRank), 0);
  }

  /** Fail this rank's calls in flight, and tell the others that it makes no more. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    const calls = this.#callsInFlight();
    // who heard of a failure from a third rank must hear of it again before it hears of this: links overtake each other
    if (this.#failure !== undefined) this.#tellAll({ type: 'poison', ...this.#failure });
    this.#tellAll({ type: 'closed', completed: this.#collectives.numCompleted });
    this.#isClosed = true;
    this.#collectives.stop();
    this.#rollCalls.cancel();
    for (const call of calls) {
      const { op, sequence } = call.info;
      const context = { rank: this.rank, group: this.id, op, sequence, ...this.ranks.blame([this.rank]) };
      const message = `${op} on ${this.ranks.name(this.rank)}: this rank closed group ${this.id} before it was done.`;
      call.fail(new ClosedError(message, context));
    }
    this.#world.forget(this, (sequence) => this.#collectives.describe(sequence));
  }

  /** Where a frame's payload goes, if the call that it belongs to has a place for it. */
  targetOf(worldRank: number, header: FrameHeader): Uint8Array | undefined {
    if (header.kind !== FrameKind.Data || this.#isOver) return undefined;
    const peer = this.#rankOf(worldRank);
    return this.#guarded(() => this.#ownerOf(header).targetOf(peer, header));
  }

  /** A payload is where `targetOf` said. */
  received(worldRank: number, header: FrameHeader): void {
    if (this.#isOver) return;
    const peer = this.#rankOf(worldRank);
    this.#guarded(() => this.#ownerOf(header).received(peer, header));
  }

  /** A frame that `targetOf` had no place for. */
  receivedEarly(worldRank: number, header: FrameHeader, bytes: Uint8Array): void {
    const peer = this.#rankOf(worldRank);
    this.#guarded(() => {
      if (header.kind === FrameKind.Control) this.#onControl(peer, decodeControl(bytes));
      else if (!this.#isOver) this.#ownerOf(header).receivedEarly(peer, header, bytes);
    });
  }

  #startCollective(
    checked: CheckedCollective<DataBuffer>,
    plan: CollectivePlan,
    callSite: CallSite | undefined,
  ): CollectiveInFlight {
    const call = this.#collectives.start(checked, plan, callSite);
    this.#world.deadlines.add(call);
    for (const [peer, completed] of this.#closedRanks) {
      if (completed <= (call.info.sequence as number)) this.#failByClosedRank(call, peer);
    }
    if (!call.isSettled) this.#collectives.post(call);
    return call;
  }

  #started<C extends PointToPointInFlight | AnnouncedMessagesInFlight>(call: C): C {
    this.#world.deadlines.add(call);
    const closed = call.awaitedPeers().find((peer) => this.#closedRanks.has(peer));
    if (closed === undefined) this.#messages.post(call);
    else this.#failByClosedRank(call, closed);
    return call;
  }

  get #at(): { readonly rank: number; readonly group: string; readonly members: GroupRanks } {
    return { rank: this.rank, group: this.id, members: this.ranks };
  }

  get #isOver(): boolean {
    return this.#failure !== undefined || this.#isClosed;
  }

  #ownerOf(header: FrameHeader): GroupCollectives | GroupMessages {
    return header.isPointToPoint ? this.#messages : this.#collectives;
  }

  #onControl(peer: number, message: ControlMessage): void {
    switch (message.type) {
      case 'poison':
        return this.fail(failureOfPeer(message), false);
      case 'closed':
        return this.#noteClosed(peer, message.completed);
      case 'lost':
        return this.#world.loseRank(this.members[peer] as number, lossByThrow(fromWire(errorOfPeer(message.error))));
      case 'question':
        return this.#tell(peer, this.#reply(message.id, message.sequence));
      case 'answer':
        return this.#rollCalls.answered(peer, message.id, message);
    }
  }

  /** A rank that has not heard yet why the group ended must not look for a reason of its own. */
  #reply(id: number, sequence: number | null): ControlMessage {
    if (this.#failure !== undefined) return { type: 'poison', ...this.#failure };
    return { type: 'answer', id, ...this.#answer(sequence) };
  }

  #answer(sequence: number | null): Answer {
    const called = sequence === null ? null : this.#collectives.describe(sequence);
    return { called, waitsIn: this.#world.waitsIn(this) };
  }

  #noteClosed(peer: number, completed: number): void {
    if (this.#closedRanks.has(peer)) return;
    this.#closedRanks.set(peer, completed);
    for (const call of this.#callsInFlight()) {
      const isInNeed =
        call.info.sequence === undefined ? call.awaitedPeers().includes(peer) : call.info.sequence >= completed;
      if (isInNeed) return this.#failByClosedRank(call, peer);
    }
  }

  #failByClosedRank(call: GrpcCall, peer: number): void {
    this.fail(failureOf(closedRankError(call, peer), { isToldOnce: true }));
  }

  #callsInFlight(): GrpcCall[] {
    return [...this.#collectives.inFlight, ...this.#messages.inFlight];
  }

  #rankOf(worldRank: number): number {
    return this.members.indexOf(worldRank);
  }

  /** What breaks in here must not break the link that called; it ends the group. */
  #guarded<T>(act: () => T): T | undefined {
    try {
      return act();
    } catch (thrown) {
      const cause = asError(thrown);
      const message = `internal error in group ${this.id} on ${this.ranks.name(this.rank)}: ${cause.message}`;
      this.fail(failureOf(new InternalError(message, { rank: this.rank, group: this.id, cause })));
      return undefined;
    }
  }

  #tell(peer: number, message: ControlMessage): void {
    this.#world.postControl(this.members[peer] as number, this.words, encodeControl(message));
  }

  #tellAll(message: ControlMessage): void {
    const bytes = encodeControl(message);
    for (const worldRank of this.members) {
      if (worldRank !== this.#world.rank) this.#world.postControl(worldRank, this.words, bytes);
    }
  }
}
