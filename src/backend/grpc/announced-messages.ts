/**
 * Sends and receives of one rank in one group whose data travels elsewhere.
 *
 * [Note: announced messages] Both sides number the messages of a pair of ranks in each direction, whatever their tags: so
 * NCCL matches them. A frame without payload says dtype, length and tag of a send; the receiver answers by an Ack once it
 * has made the receive of that number, and it fits.
 */
import { byteSize, type DataBuffer } from '../../core/dtype';
import { invariant } from '../../core/invariant';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { MAX_TAG } from '../tag-limit';
import { messageFingerprint } from './fingerprint';
import { FrameKind, type FrameHeader } from './frame';
import type { CallInfo } from './grpc-call';
import { MessagesInFlight, sendOf, type MessagePart, type MessagesHost } from './messages-in-flight';

/** In a message's header, where messages with data have 0. */
const ANNOUNCED = 1;

/** One send or receive of a call. */
interface Announcement extends MessagePart {
  readonly owner: AnnouncedMessagesInFlight;
  /** Number among those of its pair and direction. */
  message: number;
}

/** All messages with one peer, in one direction. */
interface Lane {
  nextMessage: number;
  readonly posted: Map<number, Announcement>;
  /** Sends whose receives are not posted. */
  readonly arrived: Map<number, FrameHeader>;
}

export class AnnouncedMessagesInFlight extends MessagesInFlight {
  override readonly parts: readonly Announcement[];

  constructor(info: CallInfo, { parts }: CheckedPointToPoint<DataBuffer>, host: MessagesHost) {
    super(info, host);
    this.parts = parts.map(({ call }) => ({ owner: this, call, message: 0, isDone: false }));
  }
}

export class AnnouncedMessages {
  readonly #host: MessagesHost;
  /** By peer. */
  readonly #outgoing = new Map<number, Lane>();
  readonly #incoming = new Map<number, Lane>();

  constructor(host: MessagesHost) {
    this.#host = host;
  }

  static owns(header: FrameHeader): boolean {
    return header.isPointToPoint && header.fingerprintLow === ANNOUNCED;
  }

  start(info: CallInfo, checked: CheckedPointToPoint<DataBuffer>): AnnouncedMessagesInFlight {
    invariant(
      checked.parts.every(({ call }) => call.tag <= MAX_TAG),
      'a tag that no frame can carry was not refused',
    );
    return new AnnouncedMessagesInFlight(info, checked, this.#host);
  }

  post(call: AnnouncedMessagesInFlight): void {
    for (const part of call.parts) {
      if (call.isSettled) return;
      const { op, peer } = part.call;
      const lane = laneOf(op === 'send' ? this.#outgoing : this.#incoming, peer);
      part.message = lane.nextMessage++;
      lane.posted.set(part.message, part);
      if (op === 'send') this.#say(FrameKind.Data, part);
      else this.#meet(lane, part.message);
    }
    call.completeIfDone();
  }

  /** A frame; none has a payload. */
  received(peer: number, header: FrameHeader): void {
    if (header.kind === FrameKind.Ack) return this.#acknowledged(peer, header.message);
    const lane = laneOf(this.#incoming, peer);
    lane.arrived.set(header.message, header);
    this.#meet(lane, header.message);
  }

  /** Of a send and the receive of its number, one has come: is the other there? */
  #meet(lane: Lane, message: number): void {
    const [part, header] = [lane.posted.get(message), lane.arrived.get(message)];
    if (part === undefined || header === undefined || part.owner.isSettled) return;
    lane.posted.delete(message);
    lane.arrived.delete(message);
    const { call, owner } = part;
    if (!fits(part, header)) {
      const { rank, callSite } = owner.info;
      const sender = { rank: call.peer, call: sendOf(header, rank) };
      this.#host.onDisagreement(sender, { rank, call, sourceLine: callSite?.sourceLine });
      return;
    }
    this.#say(FrameKind.Ack, part);
    owner.finish(part);
  }

  #acknowledged(peer: number, message: number): void {
    const lane = laneOf(this.#outgoing, peer);
    const part = lane.posted.get(message);
    lane.posted.delete(message);
    part?.owner.finish(part);
  }

  #say(kind: FrameKind, { call, message }: Announcement): void {
    const { words } = this.#host;
    const header = {
      kind,
      isPointToPoint: true,
      groupHigh: words.high,
      groupLow: words.low,
      call: call.tag,
      message,
      fingerprintHigh: messageFingerprint(call.dtype),
      fingerprintLow: ANNOUNCED,
    };
    this.#host.post(call.peer, { header, messageBytes: call.count * byteSize(call.dtype), payload: undefined });
  }
}

function fits({ call }: Announcement, header: FrameHeader): boolean {
  return (
    header.fingerprintHigh === messageFingerprint(call.dtype) &&
    header.messageBytes === call.count * byteSize(call.dtype) &&
    header.call === call.tag
  );
}

function laneOf(lanes: Map<number, Lane>, peer: number): Lane {
  let lane = lanes.get(peer);
  if (lane === undefined) {
    lane = { nextMessage: 0, posted: new Map(), arrived: new Map() };
    lanes.set(peer, lane);
  }
  return lane;
}
