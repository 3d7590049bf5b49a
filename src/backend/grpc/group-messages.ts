/** The sends and receives of one rank in one group, with their data or without, and the frames that come for them. */
import type { CallSite } from '../../core/call-site';
import type { DataBuffer } from '../../core/dtype';
import type { GroupRanks } from '../../core/group-ranks';
import type { CollectiveOp } from '../call';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { messageMismatchError, type MessageSide } from '../mismatch';
import { AnnouncedMessages, AnnouncedMessagesInFlight } from './announced-messages';
import type { OutgoingMessage } from './channel-outbox';
import type { Words } from './fingerprint';
import type { FrameHeader } from './frame';
import { TIMEOUT_ROLL_CALL_MS } from './group-collectives';
import type { CallInfo, GrpcCall, GrpcCallOp } from './grpc-call';
import type { MessagesHost, MessagesInFlight } from './messages-in-flight';
import { PointToPoint, type PointToPointInFlight } from './point-to-point';
import type { Answers, Question } from './roll-call';
import { missingRanksError } from './timeout-error';

export type MessagesOp = Exclude<GrpcCallOp, CollectiveOp>;

/** What messages need of their group. */
export interface GroupMessagesHost {
  readonly id: string;
  readonly ranks: GroupRanks;
  readonly rank: number;
  readonly words: Words;
  post(peer: number, message: OutgoingMessage): void;
  /** Ask ranks of the group; not answered once the group is over. */
  rollCall(question: Question, onEnd: (answers: Answers) => void): void;
  onEnded(call: GrpcCall): void;
  fail(error: Error): void;
}

export class GroupMessages {
  readonly #host: GroupMessagesHost;
  readonly #inFlight = new Set<MessagesInFlight>();
  readonly #pointToPoint: PointToPoint;
  readonly #announced: AnnouncedMessages;

  constructor(host: GroupMessagesHost) {
    const { id: group, ranks, words } = host;
    this.#host = host;
    const callHost: MessagesHost = {
      words,
      post: (peer, message) => host.post(peer, message),
      onEnded: (call) => {
        this.#inFlight.delete(call as MessagesInFlight);
        host.onEnded(call);
      },
      onDisagreement: (...sides) => host.fail(messageMismatchError({ group, ranks }, sides)),
      onExpired: (call) => this.#expire(call),
    };
    this.#pointToPoint = new PointToPoint(callHost);
    this.#announced = new AnnouncedMessages({
      ...callHost,
      onDisagreement: (...sides) => host.fail(this.#announcementMismatch(sides)),
    });
  }

  get inFlight(): readonly MessagesInFlight[] {
    return [...this.#inFlight];
  }

  /** A call; `post` it. */
  start(op: MessagesOp, checked: CheckedPointToPoint, callSite: CallSite | undefined): PointToPointInFlight {
    const call = this.#pointToPoint.start(this.#info(op, checked.timeoutMs, callSite), checked);
    this.#inFlight.add(call);
    return call;
  }

  /** All of a call but its data: [Note: announced messages]; `post` it. */
  announce(
    op: MessagesOp,
    checked: CheckedPointToPoint<DataBuffer>,
    callSite: CallSite | undefined,
  ): AnnouncedMessagesInFlight {
    const call = this.#announced.start(this.#info(op, checked.timeoutMs, callSite), checked);
    this.#inFlight.add(call);
    return call;
  }

  post(call: PointToPointInFlight | AnnouncedMessagesInFlight): void {
    if (call instanceof AnnouncedMessagesInFlight) this.#announced.post(call);
    else this.#pointToPoint.post(call);
  }

  /** Where a frame's payload goes, if its call has a place for it. */
  targetOf(peer: number, header: FrameHeader): Uint8Array | undefined {
    return AnnouncedMessages.owns(header) ? undefined : this.#pointToPoint.targetOf(peer, header);
  }

  received(peer: number, header: FrameHeader): void {
    this.#pointToPoint.received(peer, header);
  }

  /** A frame that `targetOf` had no place for. */
  receivedEarly(peer: number, header: FrameHeader, bytes: Uint8Array): void {
    if (AnnouncedMessages.owns(header)) this.#announced.received(peer, header);
    else this.#pointToPoint.receivedEarly(peer, header, bytes);
  }

  /** The deadline has passed: ask the peers that the call waits for where they are. */
  #expire(call: MessagesInFlight): void {
    const question = { sequence: null, peers: call.awaitedPeers(), limitMs: TIMEOUT_ROLL_CALL_MS };
    this.#host.rollCall(question, (answers) => {
      if (!call.isSettled) this.#host.fail(missingRanksError(call, call.awaitedPeers(), answers));
    });
  }

  #announcementMismatch(sides: readonly [MessageSide, MessageSide]): Error {
    const { id: group, ranks } = this.#host;
    const words = {
      heading: `a send and the receive that it meets, in group ${group}, disagree:`,
      advice:
        'Messages from one rank to another meet in the order of the calls, whatever their tags; both must name the same tag, dtype and number of elements.',
    };
    return messageMismatchError({ group, ranks }, sides, {}, words);
  }

  #info(op: MessagesOp, timeoutMs: number, callSite: CallSite | undefined): CallInfo {
    const { id: group, ranks: members, rank } = this.#host;
    return { op, sequence: undefined, group, members, rank, timeoutMs, callSite };
  }
}
