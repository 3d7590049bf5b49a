/** Frames out of a stream of bytes that arrives in slices of any size. */
import { InternalError } from '../../core/errors';
import { HEADER_BYTES, decodeHeader, type FrameHeader } from './frame';

/** What becomes of frames; the collectives' part of a LinkListener. */
export interface FrameSink {
  /** Where the payload of this frame goes: exactly header.payloadBytes bytes. */
  onHeader(header: FrameHeader): Uint8Array;
  /** The payload is in place; called for empty ones too. */
  onPayload(header: FrameHeader): void;
}

/**
 * Copies payloads from the slices straight to where they belong; keeps nothing itself but a header in the making, so
 * that a length made up by a stranger costs no memory.
 */
export class FrameReader {
  readonly #sink: FrameSink;
  readonly #partialHeader = new Uint8Array(HEADER_BYTES);
  #headerFilled = 0;
  #header: FrameHeader | undefined;
  #target: Uint8Array | undefined;
  #payloadFilled = 0;
  #isBroken = false;

  constructor(sink: FrameSink) {
    this.#sink = sink;
  }

  /** True if the stream may end here. */
  get isBetweenFrames(): boolean {
    return this.#header === undefined && this.#headerFilled === 0;
  }

  /**
   * Take the next bytes of the stream; they are not kept.
   *
   * @throws InvalidArgumentError for bytes that are no frame, or what the sink threw; later bytes are ignored
   */
  push(bytes: Uint8Array): void {
    if (this.#isBroken) return;
    try {
      let offset = 0;
      while (offset < bytes.byteLength) {
        offset = this.#header === undefined ? this.#readHeader(bytes, offset) : this.#readPayload(bytes, offset);
      }
    } catch (error) {
      this.#isBroken = true;
      this.#target = undefined;
      throw error;
    }
  }

  #readHeader(bytes: Uint8Array, offset: number): number {
    if (this.#headerFilled === 0 && bytes.byteLength - offset >= HEADER_BYTES) {
      this.#begin(decodeHeader(bytes.subarray(offset, offset + HEADER_BYTES)));
      return offset + HEADER_BYTES;
    }
    const end = Math.min(bytes.byteLength, offset + HEADER_BYTES - this.#headerFilled);
    this.#partialHeader.set(bytes.subarray(offset, end), this.#headerFilled);
    this.#headerFilled += end - offset;
    if (this.#headerFilled === HEADER_BYTES) {
      this.#headerFilled = 0;
      this.#begin(decodeHeader(this.#partialHeader));
    }
    return end;
  }

  #begin(header: FrameHeader): void {
    const target = this.#sink.onHeader(header);
    if (target.byteLength !== header.payloadBytes) {
      throw new InternalError(
        `internal error: ${target.byteLength} bytes of room for a payload of ${header.payloadBytes}. Please report it with the steps that led here.`,
      );
    }
    if (header.payloadBytes === 0) {
      this.#sink.onPayload(header);
      return;
    }
    this.#header = header;
    this.#target = target;
    this.#payloadFilled = 0;
  }

  #readPayload(bytes: Uint8Array, offset: number): number {
    const header = this.#header as FrameHeader;
    const end = Math.min(bytes.byteLength, offset + header.payloadBytes - this.#payloadFilled);
    this.#target?.set(bytes.subarray(offset, end), this.#payloadFilled);
    this.#payloadFilled += end - offset;
    if (this.#payloadFilled === header.payloadBytes) {
      this.#header = undefined;
      this.#target = undefined;
      this.#sink.onPayload(header);
    }
    return end;
  }
}
