/**
 * Sends and receives of one rank in one group: rendezvous, first in first out per (source, destination, tag).
 *
 * [Note: rendezvous] Both sides number the messages of a lane (peer, tag, direction), so the k-th send meets the k-th
 * receive without a word. The first frame carries up to EAGER_BYTES of payload, or nothing while much of what was sent
 * to that peer waits unreceived; the rest follows on the receiver's Grant. The Ack says that the receiver has it all.
 */
import { bytesOf, type HostBuffer } from '../../core/dtype';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { EAGER_BYTES, type OutgoingMessage } from './channel-outbox';
import { messageDType, messageFingerprint } from './fingerprint';
import { FrameKind, type FrameHeader } from './frame';
import type { CallInfo } from './grpc-call';
import { MessagesInFlight, sendOf, type MessagePart, type MessagesHost } from './messages-in-flight';

/** Unreceived bytes that all messages to one peer may keep in its memory. */
const EAGER_BYTES_PER_PEER = 8 * EAGER_BYTES;

/** One send or receive of a call. */
interface Transfer extends MessagePart {
  readonly owner: PointToPointInFlight;
  readonly data: HostBuffer;
  /** Number in its lane. */
  message: number;
  /** Bytes sent, or in place. */
  offset: number;
  eagerBytes: number;
}

/** A message that came before its receive was posted. */
interface Arrival {
  readonly header: FrameHeader;
  readonly pieces: Uint8Array[];
}

interface Lane {
  /** Number of the next send or receive that is posted. */
  nextMessage: number;
  readonly posted: Map<number, Transfer>;
  readonly arrived: Map<number, Arrival>;
}

export class PointToPointInFlight extends MessagesInFlight {
  override readonly parts: readonly Transfer[];

  constructor(info: CallInfo, checked: CheckedPointToPoint, host: MessagesHost) {
    super(info, host);
    this.parts = checked.parts.map(({ call, data }) => ({
      owner: this,
      call,
      data,
      message: 0,
      offset: 0,
      eagerBytes: 0,
      isDone: false,
    }));
  }
}

export class PointToPoint {
  readonly #host: MessagesHost;
  readonly #outgoing = new Map<number, Lane>();
  readonly #incoming = new Map<number, Lane>();
  /** By peer: bytes that were sent before the receiver was known to want them. */
  readonly #eagerBytes = new Map<number, number>();

  constructor(host: MessagesHost) {
    this.#host = host;
  }

  start(info: CallInfo, checked: CheckedPointToPoint): PointToPointInFlight {
    return new PointToPointInFlight(info, checked, this.#host);
  }

  post(call: PointToPointInFlight): void {
    for (const transfer of call.parts) {
      if (call.isSettled) return;
      if (transfer.call.op === 'send') this.#postSend(transfer);
      else this.#postReceive(transfer);
    }
    call.completeIfDone();
  }

  /** Where a frame's payload goes, if its receive is posted. */
  targetOf(peer: number, header: FrameHeader): Uint8Array | undefined {
    const lane = this.#incoming.get(laneKey(peer, header.call));
    const transfer = lane?.posted.get(header.message);
    if (transfer === undefined || lane?.arrived.has(header.message) === true) return undefined;
    if (!this.#fits(peer, transfer, header)) return undefined;
    return bytesOf(transfer.data).subarray(transfer.offset, transfer.offset + header.payloadBytes);
  }

  received(peer: number, header: FrameHeader): void {
    const transfer = this.#incoming.get(laneKey(peer, header.call))?.posted.get(header.message);
    if (transfer !== undefined && !transfer.owner.isSettled) this.#advance(peer, transfer, header, header.payloadBytes);
  }

  /** A frame that `targetOf` had no place for: of a message whose receive is not posted, a grant, or an acknowledgement. */
  receivedEarly(peer: number, header: FrameHeader, bytes: Uint8Array): void {
    if (header.kind === FrameKind.Grant) this.#granted(peer, header);
    else if (header.kind === FrameKind.Ack) this.#acknowledged(peer, header);
    else this.#arrived(peer, header, bytes);
  }

  #arrived(peer: number, header: FrameHeader, bytes: Uint8Array): void {
    const lane = laneOf(this.#incoming, peer, header.call);
    const arrival = lane.arrived.get(header.message);
    if (arrival === undefined) lane.arrived.set(header.message, { header, pieces: [bytes] });
    else arrival.pieces.push(bytes);
    const transfer = lane.posted.get(header.message);
    if (transfer !== undefined) this.#takeArrival(transfer); // posted while the payload was on its way
  }

  #granted(peer: number, header: FrameHeader): void {
    const transfer = this.#outgoing.get(laneKey(peer, header.call))?.posted.get(header.message);
    if (transfer === undefined || transfer.owner.isSettled) return;
    const rest = bytesOf(transfer.data).subarray(transfer.offset);
    transfer.offset += rest.byteLength;
    if (rest.byteLength > 0) this.#sendData(transfer, rest);
  }

  #acknowledged(peer: number, header: FrameHeader): void {
    const lane = this.#outgoing.get(laneKey(peer, header.call));
    const transfer = lane?.posted.get(header.message);
    if (lane === undefined || transfer === undefined) return;
    lane.posted.delete(header.message);
    this.#eagerBytes.set(peer, (this.#eagerBytes.get(peer) ?? 0) - transfer.eagerBytes);
    transfer.owner.finish(transfer);
  }

  #postSend(transfer: Transfer): void {
    const { peer, tag } = transfer.call;
    const lane = laneOf(this.#outgoing, peer, tag);
    transfer.message = lane.nextMessage++;
    lane.posted.set(transfer.message, transfer);
    const bytes = bytesOf(transfer.data);
    const eagerBytes = Math.min(bytes.byteLength, EAGER_BYTES);
    const held = this.#eagerBytes.get(peer) ?? 0;
    if (held + eagerBytes <= EAGER_BYTES_PER_PEER) {
      transfer.eagerBytes = eagerBytes;
      transfer.offset = eagerBytes;
      this.#eagerBytes.set(peer, held + eagerBytes);
    }
    this.#sendData(transfer, bytes.subarray(0, transfer.offset));
  }

  #postReceive(transfer: Transfer): void {
    const { peer, tag } = transfer.call;
    const lane = laneOf(this.#incoming, peer, tag);
    transfer.message = lane.nextMessage++;
    lane.posted.set(transfer.message, transfer);
    this.#takeArrival(transfer);
  }

  /** Copy what came early, and go on from there. */
  #takeArrival(transfer: Transfer): void {
    const { peer, tag } = transfer.call;
    const lane = laneOf(this.#incoming, peer, tag);
    const arrival = lane.arrived.get(transfer.message);
    if (arrival === undefined) return;
    lane.arrived.delete(transfer.message);
    if (!this.#fits(peer, transfer, arrival.header)) return;
    const target = bytesOf(transfer.data);
    let numBytes = 0;
    for (const piece of arrival.pieces) {
      target.set(piece, transfer.offset + numBytes);
      numBytes += piece.byteLength;
    }
    this.#advance(peer, transfer, arrival.header, numBytes);
  }

  #advance(peer: number, transfer: Transfer, header: FrameHeader, numBytes: number): void {
    const isFirst = transfer.offset === 0;
    transfer.offset += numBytes;
    if (transfer.offset < header.messageBytes) {
      if (isFirst) this.#reply(FrameKind.Grant, transfer);
      return;
    }
    this.#incoming.get(laneKey(peer, transfer.call.tag))?.posted.delete(transfer.message);
    this.#reply(FrameKind.Ack, transfer);
    transfer.owner.finish(transfer);
  }

  /** True if the message is what the receive expects; else the group ends. */
  #fits(peer: number, transfer: Transfer, header: FrameHeader): boolean {
    const { call } = transfer;
    const dtype = messageDType(header.fingerprintHigh);
    if (dtype === call.dtype && header.messageBytes === transfer.data.byteLength) {
      return transfer.offset + header.payloadBytes <= header.messageBytes;
    }
    const { rank, callSite } = transfer.owner.info;
    this.#host.onDisagreement(
      { rank: peer, call: sendOf(header, rank) },
      { rank, call, sourceLine: callSite?.sourceLine },
    );
    return false;
  }

  #sendData(transfer: Transfer, payload: Uint8Array): void {
    const isCancelled = (): boolean => transfer.owner.isSettled;
    const messageBytes = transfer.data.byteLength;
    this.#host.post(transfer.call.peer, {
      header: this.#header(FrameKind.Data, transfer),
      messageBytes,
      payload,
      isCancelled,
    });
  }

  #reply(kind: FrameKind, transfer: Transfer): void {
    this.#host.post(transfer.call.peer, { header: this.#header(kind, transfer), messageBytes: 0, payload: undefined });
  }

  #header(kind: FrameKind, { call, message }: Transfer): OutgoingMessage['header'] {
    const { words } = this.#host;
    return {
      kind,
      isPointToPoint: true,
      groupHigh: words.high,
      groupLow: words.low,
      call: call.tag,
      message,
      fingerprintHigh: messageFingerprint(call.dtype),
      fingerprintLow: 0,
    };
  }
}

/** Tags have 32 bits in a frame, ranks fit into the rest. */
function laneKey(peer: number, tag: number): number {
  return peer * 2 ** 32 + tag;
}

function laneOf(lanes: Map<number, Lane>, peer: number, tag: number): Lane {
  const key = laneKey(peer, tag);
  let lane = lanes.get(key);
  if (lane === undefined) {
    lane = { nextMessage: 0, posted: new Map(), arrived: new Map() };
    lanes.set(key, lane);
  }
  return lane;
}
