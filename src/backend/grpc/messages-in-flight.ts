/** A send, a receive, a batch or an exchange in flight, whichever way its messages are matched. */
import { byteSize } from '../../core/dtype';
import { describePointToPoint, type PointToPointCall } from '../call';
import type { MessageSide } from '../mismatch';
import type { OutgoingMessage } from './channel-outbox';
import { messageDType, type Words } from './fingerprint';
import type { FrameHeader } from './frame';
import { GrpcCall, type CallInfo, type OnEnded } from './grpc-call';

/** What messages need of their group. */
export interface MessagesHost {
  readonly words: Words;
  post(peer: number, message: OutgoingMessage): void;
  onEnded: OnEnded;
  /** A send and the receive that it meets do not fit. */
  onDisagreement(sender: MessageSide, receiver: MessageSide): void;
  onExpired(call: MessagesInFlight): void;
}

/** One send or receive of a call. */
export interface MessagePart {
  readonly call: PointToPointCall;
  isDone: boolean;
}

export abstract class MessagesInFlight extends GrpcCall {
  abstract readonly parts: readonly MessagePart[];
  readonly #host: MessagesHost;

  constructor(info: CallInfo, host: MessagesHost) {
    super(info, host.onEnded);
    this.#host = host;
  }

  override describe(): string {
    const { op } = this.info;
    if (op === 'exchange') return 'exchange()';
    const parts = this.parts.map(({ call }) => describePointToPoint(call));
    return op === 'batch' ? `batch(${parts.join(', ')})` : parts.join();
  }

  override awaitedPeers(): readonly number[] {
    const peers = this.parts.flatMap(({ isDone, call }) => (isDone ? [] : [call.peer]));
    return [...new Set(peers)].sort((a, b) => a - b);
  }

  override probe(): void {
    // The first frame of each message has told the peer already.
  }

  override expire(): void {
    this.#host.onExpired(this);
  }

  /** One of its parts has all that it needs. */
  finish(part: MessagePart): void {
    part.isDone = true;
    if (!this.isSettled) this.completeIfDone();
  }

  completeIfDone(): void {
    if (this.parts.every(({ isDone }) => isDone)) this.complete();
  }

  protected override stop(): void {
    // Its lanes end with it: a call that fails ends the group.
  }
}

/** A send as its header tells it, to rank `receiver`; of a dtype that this version does not know, as bytes. */
export function sendOf(header: FrameHeader, receiver: number): PointToPointCall {
  const dtype = messageDType(header.fingerprintHigh) ?? 'uint8';
  return { op: 'send', dtype, count: header.messageBytes / byteSize(dtype), peer: receiver, tag: header.call };
}
