/**
 * What travels between two ranks: frames of a fixed header and a payload.
 *
 * [Note: frames] A message (one transfer of a call, from one rank to another) is cut into Data frames of at most
 * CHUNK_BYTES. Frames of one channel arrive in the order sent. A channel is (group, call): the collective with that
 * sequence number, or the point-to-point messages with that tag (without data: all of the pair, see [Note: announced
 * messages]). The fingerprint of the call travels in every header, so that a mismatch is found without a round trip of
 * its own. All numbers are little endian.
 */
import { InvalidArgumentError } from '../../core/errors';

/** Bytes of a frame's header. */
export const HEADER_BYTES = 48;
/** The most payload of one frame; nothing on the way ever holds more than one of them per link. */
export const CHUNK_BYTES = 512 * 1024;
/** Changes when frames or handshakes change; ranks with another version are refused. */
export const PROTOCOL_VERSION = 2;

export const FrameKind = {
  /** A piece of a message. */
  Data: 1,
  /** The receiver has posted the call: the sender may send beyond the eager bytes of this channel. */
  Grant: 2,
  /** A point-to-point message was received whole. */
  Ack: 3,
  /** Something about a group or the job, as JSON: poison, question, answer. */
  Control: 4,
  /** The last frame of a link that is closed on purpose; made and read by the links themselves. */
  Goodbye: 5,
} as const;
export type FrameKind = (typeof FrameKind)[keyof typeof FrameKind];

export interface FrameHeader {
  readonly kind: FrameKind;
  /** True for point-to-point channels, whose `call` is the tag; else `call` is the collective's sequence number. */
  readonly isPointToPoint: boolean;
  /** Identity of the group: 64 bits of a hash of its name, as two words. */
  readonly groupHigh: number;
  readonly groupLow: number;
  /** Sequence number or tag, 0 to 2^32 - 1. */
  readonly call: number;
  /** Number of the message in its channel and direction, from 0. */
  readonly message: number;
  /** 64 bits of a hash of the call's description, as two words; 0 in Control frames. */
  readonly fingerprintHigh: number;
  readonly fingerprintLow: number;
  /** Bytes of the whole message, up to 2^53 - 1. */
  readonly messageBytes: number;
  /** Bytes of this frame's payload, 0 to CHUNK_BYTES. */
  readonly payloadBytes: number;
}

export function encodeHeader(header: FrameHeader, target: Uint8Array): void {
  const view = new DataView(target.buffer, target.byteOffset, HEADER_BYTES);
  view.setUint8(0, PROTOCOL_VERSION);
  view.setUint8(1, header.kind);
  view.setUint8(2, header.isPointToPoint ? 1 : 0);
  view.setUint8(3, 0);
  view.setUint32(4, header.payloadBytes, true);
  view.setUint32(8, header.groupHigh, true);
  view.setUint32(12, header.groupLow, true);
  view.setUint32(16, header.call, true);
  view.setUint32(20, header.message, true);
  view.setUint32(24, header.fingerprintHigh, true);
  view.setUint32(28, header.fingerprintLow, true);
  view.setFloat64(32, header.messageBytes, true);
  view.setFloat64(40, 0, true);
}

/**
 * @throws InvalidArgumentError for bytes that no peer of ours sends; the link cannot be trusted any more
 */
export function decodeHeader(source: Uint8Array): FrameHeader {
  const view = new DataView(source.buffer, source.byteOffset, HEADER_BYTES);
  const version = view.getUint8(0);
  const kind = view.getUint8(1);
  const flags = view.getUint8(2);
  const payloadBytes = view.getUint32(4, true);
  const messageBytes = view.getFloat64(32, true);
  if (version !== PROTOCOL_VERSION) throw malformed(`protocol version ${version}, expected ${PROTOCOL_VERSION}`);
  if (kind < FrameKind.Data || kind > FrameKind.Goodbye) throw malformed(`unknown kind ${kind}`);
  if (flags > 1 || view.getUint8(3) !== 0 || view.getFloat64(40, true) !== 0) throw malformed('reserved bits are set');
  if (payloadBytes > CHUNK_BYTES)
    throw malformed(`payload of ${payloadBytes} bytes, at most ${CHUNK_BYTES} are allowed`);
  if (!Number.isSafeInteger(messageBytes) || messageBytes < payloadBytes)
    throw malformed(`message of ${messageBytes} bytes`);
  return {
    kind: kind as FrameKind,
    isPointToPoint: flags === 1,
    groupHigh: view.getUint32(8, true),
    groupLow: view.getUint32(12, true),
    call: view.getUint32(16, true),
    message: view.getUint32(20, true),
    fingerprintHigh: view.getUint32(24, true),
    fingerprintLow: view.getUint32(28, true),
    messageBytes,
    payloadBytes,
  };
}

function malformed(what: string): InvalidArgumentError {
  return new InvalidArgumentError(
    `malformed frame: ${what}. The peer does not speak this version of Lockstep's protocol.`,
  );
}
