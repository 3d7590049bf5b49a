/** Handshake messages out of a stream of bytes: four bytes of length, little endian, then the message. */
import { HandshakeError, MAX_HANDSHAKE_BYTES } from './handshake';

const PREFIX_BYTES = 4;

/** A message as it travels on a socket. */
export function frameHandshake(message: Uint8Array): Uint8Array {
  const framed = Buffer.allocUnsafe(PREFIX_BYTES + message.byteLength);
  framed.writeUInt32LE(message.byteLength, 0);
  framed.set(message, PREFIX_BYTES);
  return framed;
}

/** Keeps what has arrived until it is asked for; the owner stops reading when `isFull`. */
export class HandshakeInbox {
  #unread: Buffer = Buffer.alloc(0);
  #waiting: { resolve(message: Uint8Array): void; reject(error: Error): void } | undefined;
  #failure: Error | undefined;

  /** True if it holds more than any message: what follows must wait for the next step. */
  get isFull(): boolean {
    return this.#unread.byteLength > PREFIX_BYTES + MAX_HANDSHAKE_BYTES;
  }

  /** @param bytes copied */
  push(bytes: Uint8Array): void {
    this.#unread = Buffer.concat([this.#unread, bytes]);
    this.#deliver();
  }

  /** The connection has ended; messages that have arrived whole can still be had. */
  fail(error: Error): void {
    this.#failure ??= error;
    this.#deliver();
  }

  /**
   * The next message. One at a time.
   * @throws HandshakeError 'oversized' as soon as the length is known, or what `fail` was given
   */
  receive(): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      this.#deliver();
    });
  }

  /** What came after the last message that was received. */
  takeUnread(): Uint8Array {
    const unread = this.#unread;
    this.#unread = Buffer.alloc(0);
    return unread;
  }

  #deliver(): void {
    const waiting = this.#waiting;
    if (waiting === undefined) return;
    const length = this.#unread.byteLength < PREFIX_BYTES ? undefined : this.#unread.readUInt32LE(0);
    if (length !== undefined && length > MAX_HANDSHAKE_BYTES) {
      this.#waiting = undefined;
      waiting.reject(tooLong(length));
    } else if (length !== undefined && this.#unread.byteLength >= PREFIX_BYTES + length) {
      this.#waiting = undefined;
      const message = this.#unread.subarray(PREFIX_BYTES, PREFIX_BYTES + length);
      this.#unread = this.#unread.subarray(PREFIX_BYTES + length);
      waiting.resolve(message);
    } else if (this.#failure !== undefined) {
      this.#waiting = undefined;
      waiting.reject(this.#failure);
    }
  }
}

function tooLong(length: number): HandshakeError {
  // 22 and 3: a TLS record of its handshake; 21 and 3: of an alert.
  const isTls = (length & 0xffff) === 0x0316 || (length & 0xffff) === 0x0315;
  if (isTls)
    return new HandshakeError('malformed', 'it speaks TLS, this process does not. Give tls to all ranks or to none.');
  return new HandshakeError(
    'oversized',
    `it announced a handshake message of ${length} bytes, at most ${MAX_HANDSHAKE_BYTES} are allowed; it is too big, or something else than a rank.`,
  );
}
