/**
 * The collectives of one rank in one group, and the frames that come for them.
 *
 * Collectives match by sequence number. Frames for a call that this rank has not made yet wait, at most the eager bytes
 * of each peer; a frame whose fingerprint is not that of the call here starts the roll call that ends in
 * CollectiveMismatchError on all ranks.
 *
 * [Note: completion order] Collectives of a group overlap, but complete in the order in which they were made. Otherwise
 * the source of a broadcast would be told of a success while the ranks are about to find out that they disagree about
 * the collective before it.
 */
import type { GroupRanks } from '../../core/group-ranks';
import type { Place } from '../algorithms/schedule';
import type { CollectiveCall } from '../call';
import type { CallSite } from '../../core/call-site';
import { collectiveMismatchError, type CalledByRank, type UnequalPair } from '../mismatch';
import { CallHistory } from './call-history';
import type { OutgoingMessage } from './channel-outbox';
import { CollectiveInFlight, type CollectiveHost } from './collective-in-flight';
import type { CollectivePlan } from './collective-plan';
import { EagerBudget } from './eager-budget';
import { fingerprintOf, type Words } from './fingerprint';
import { FrameKind, type FrameHeader } from './frame';
import type { GrpcCall } from './grpc-call';
import type { Answers, Question } from './roll-call';
import type { ScratchPool } from '../../core/scratch-pool';
import { missingDataError, missingRanksError } from './timeout-error';

/**
 * How long ranks may take to say what they called: a rank that computes answers when it yields. Longer than a link needs
 * to find out that it is gone, so that a rank that cannot answer because it is lost ends the group by its loss.
 */
const MISMATCH_ROLL_CALL_MS = 1500;
/** The same after a deadline, which has waited already. */
export const TIMEOUT_ROLL_CALL_MS = 500;

/** What collectives need of their group. */
export interface GroupCollectivesHost {
  readonly id: string;
  readonly ranks: GroupRanks;
  readonly place: Place;
  readonly words: Words;
  readonly scratchPool: ScratchPool;
  post(peer: number, message: OutgoingMessage): void;
  /** Ask the ranks of the group; not answered once the group is over. */
  rollCall(question: Question, onEnd: (answers: Answers) => void): void;
  onEnded(call: GrpcCall): void;
  fail(error: Error): void;
}

interface EarlyFrame {
  readonly peer: number;
  readonly header: FrameHeader;
  readonly bytes: Uint8Array;
}

export class GroupCollectives {
  readonly #host: GroupCollectivesHost;
  readonly #callHost: CollectiveHost;
  /** By sequence number, in that order. */
  readonly #inFlight = new Map<number, CollectiveInFlight>();
  readonly #early = new Map<number, EarlyFrame[]>();
  readonly #history = new CallHistory();
  readonly #eagerBudget: EagerBudget;
  #isDisputed = false;

  constructor(host: GroupCollectivesHost) {
    const { place, words, scratchPool } = host;
    this.#host = host;
    this.#eagerBudget = new EagerBudget(place.size);
    this.#callHost = {
      eagerBudget: this.#eagerBudget,
      place,
      words,
      scratchPool,
      post: (peer, message) => host.post(peer, message),
      onRunDone: () => this.#completeInOrder(),
      onEnded: (call) => {
        this.#inFlight.delete(call.info.sequence as number);
        host.onEnded(call);
      },
      onDisagreement: (call, pair) => this.#dispute(call.info.sequence as number, pair),
      onExpired: (call) => this.#expire(call),
    };
  }

  get inFlight(): readonly CollectiveInFlight[] {
    return [...this.#inFlight.values()];
  }

  /** All collectives with lower numbers are done. */
  get numCompleted(): number {
    return Math.min(this.#history.next, ...this.#inFlight.keys());
  }

  /** What this rank called, in words; null if nothing yet. */
  describe(sequence: number): CalledByRank | null {
    return this.#history.describe(sequence);
  }

  /** A call with the next sequence number; `post` it. */
  start(
    { call, timeoutMs }: { readonly call: CollectiveCall; readonly timeoutMs: number },
    plan: CollectivePlan,
    callSite: CallSite | undefined,
  ): CollectiveInFlight {
    const { id, ranks: members, place } = this.#host;
    const fingerprint = fingerprintOf(call);
    const sequence = this.#history.add(call, fingerprint, callSite);
    const info = { op: call.op, sequence, group: id, members, rank: place.rank, timeoutMs, callSite };
    const inFlight = new CollectiveInFlight(info, call, fingerprint, plan, this.#callHost);
    this.#inFlight.set(sequence, inFlight);
    return inFlight;
  }

  post(call: CollectiveInFlight): void {
    const sequence = call.info.sequence as number;
    const early = this.#early.get(sequence) ?? [];
    this.#early.delete(sequence);
    if (early.some(({ header }) => isOtherCall(header, call.fingerprint))) this.#dispute(sequence);
    else call.run.start();
    for (const { peer, header, bytes } of early) this.#deliver(call, peer, header, bytes);
  }

  /** Where a frame's payload goes, if its call has a place for it. */
  targetOf(peer: number, header: FrameHeader): Uint8Array | undefined {
    const call = this.#inFlight.get(header.call);
    if (call === undefined || isOtherCall(header, call.fingerprint)) return undefined;
    return call.run.targetOf(peer, header);
  }

  received(peer: number, header: FrameHeader): void {
    this.#inFlight.get(header.call)?.run.received(peer, header);
  }

  /** A frame that `targetOf` had no place for, or a grant, or a report of bytes taken. */
  receivedEarly(peer: number, header: FrameHeader, bytes: Uint8Array): void {
    if (header.kind === FrameKind.Ack) return this.#taken(peer, header.messageBytes);
    const sequence = header.call;
    const call = this.#inFlight.get(sequence);
    if (call !== undefined) return this.#deliver(call, peer, header, bytes);
    if (sequence < this.#history.next) {
      // A probe that came late says nothing new, unless this rank finished another call than the peer is in.
      if (this.#history.isOther(sequence, wordsOf(header))) this.#dispute(sequence);
      return;
    }
    const early = this.#early.get(sequence);
    if (early === undefined) this.#early.set(sequence, [{ peer, header, bytes }]);
    else early.push({ peer, header, bytes });
  }

  /** The group is over. */
  stop(): void {
    this.#early.clear();
  }

  #taken(peer: number, numBytes: number): void {
    this.#eagerBudget.release(peer, numBytes);
    for (const { run } of this.inFlight) run.resume(peer);
  }

  #deliver(call: CollectiveInFlight, peer: number, header: FrameHeader, bytes: Uint8Array): void {
    if (call.isSettled) return;
    if (isOtherCall(header, call.fingerprint)) this.#dispute(header.call);
    else if (header.kind === FrameKind.Grant) call.run.grant(peer);
    else if (!call.run.isStopped) call.run.receivedEarly(peer, header, bytes);
  }

  /** [Note: completion order] */
  #completeInOrder(): void {
    for (const call of this.#inFlight.values()) {
      if (!call.isRunDone) return;
      call.complete();
    }
  }

  /** Ranks disagree about a collective: ask all what they called, then end the group. */
  #dispute(sequence: number, pair?: UnequalPair): void {
    if (this.#isDisputed) return;
    this.#isDisputed = true;
    this.#inFlight.get(sequence)?.run.stop();
    this.#ask(sequence, MISMATCH_ROLL_CALL_MS, (answers) => {
      const { id: group, ranks } = this.#host;
      const calls = answers.map((answer) => answer?.called ?? undefined);
      this.#host.fail(collectiveMismatchError({ group, ranks, sequence, calls, pair }));
    });
  }

  /** The deadline has passed: ask who has come, since a rank in the middle may itself only wait for another. */
  #expire(call: CollectiveInFlight): void {
    const holdsUp = this.inFlight.find((other) => !other.isRunDone) ?? call;
    this.#ask(holdsUp.info.sequence as number, TIMEOUT_ROLL_CALL_MS, (answers) => {
      if (call.isSettled) return;
      const behind = holdsUp === call ? '' : ` in ${holdsUp.title}, which comes before it`;
      const missing = answers.flatMap((answer, rank) => ((answer?.called ?? null) === null ? [rank] : []));
      const error =
        missing.length > 0
          ? missingRanksError(call, missing, answers, behind)
          : missingDataError(call, holdsUp.awaitedPeers(), behind);
      this.#host.fail(error);
    });
  }

  #ask(sequence: number, limitMs: number, onEnd: (answers: Answers) => void): void {
    const peers = Array.from({ length: this.#host.place.size }, (_unused, rank) => rank);
    this.#host.rollCall({ sequence, peers, limitMs }, onEnd);
  }
}

function wordsOf({ fingerprintHigh, fingerprintLow }: FrameHeader): Words {
  return { high: fingerprintHigh, low: fingerprintLow };
}

function isOtherCall(header: FrameHeader, { high, low }: Words): boolean {
  return header.fingerprintHigh !== high || header.fingerprintLow !== low;
}
