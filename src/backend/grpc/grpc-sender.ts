/** The sending half over a gRPC stream that a peer opened: this process is its server. */
import type { ServerDuplexStream } from '@grpc/grpc-js';
import type { Socket } from 'node:net';
import type { SendingHalf } from './half-link';

/** Up to here a frame is copied into one message; above, header and payload go as two, which costs no copy. */
const ONE_MESSAGE_BYTES = 16 * 1024;

export type FrameStream = ServerDuplexStream<Uint8Array, Uint8Array>;

export class GrpcSender implements SendingHalf {
  readonly #stream: FrameStream;
  readonly #socket: Socket;
  /** grpc-js never calls back for a message on a cancelled stream, so these are failed by hand. */
  readonly #pending = new Set<(error: Error) => void>();
  readonly #listeners: ((why: string) => void)[] = [];
  #why: string | undefined;

  /**
   * @param stream has finished its handshake; the peer sends nothing more on it
   * @param socket the connection that carries the stream, and no other
   */
  constructor(stream: FrameStream, socket: Socket) {
    this.#stream = stream;
    this.#socket = socket;
    stream.on('error', (error) => this.#close(`the stream broke (${error.message})`));
    stream.on('cancelled', () => this.#close('its stream was cancelled without a goodbye'));
    stream.on('data', () => {
      this.#close('it sent data on a stream that carries none from it');
      socket.destroy();
    });
    socket.once('close', () =>
      this.#close('its connection closed without a goodbye (the process ended or was killed)'),
    );
  }

  send(header: Uint8Array, payload: Uint8Array | undefined): Promise<void> {
    if (payload === undefined || payload.byteLength === 0) return this.#write(header);
    if (payload.byteLength <= ONE_MESSAGE_BYTES) return this.#write(Buffer.concat([header, payload]));
    // What becomes of the header shows in the payload.
    if (this.#why === undefined) this.#stream.write(header);
    return this.#write(payload);
  }

  /** The message was copied by the time that its callback comes. */
  #write(bytes: Uint8Array): Promise<void> {
    const why = this.#why;
    if (why !== undefined) return Promise.reject(new Error(why));
    return new Promise((resolve, reject) => {
      this.#pending.add(reject);
      this.#stream.write(bytes, (error: Error | null | undefined) => {
        this.#pending.delete(reject);
        if (error) reject(error);
        else resolve();
      });
    });
  }

  /** HTTP/2 has unread bytes in both directions at most times, so the peer is the one to close the connection. */
  end(): Promise<void> {
    return new Promise((resolve) => {
      if (this.#socket.destroyed) resolve();
      this.#socket.once('close', () => resolve());
      this.#stream.end();
    });
  }

  destroy(): void {
    this.#socket.destroy();
  }

  onClosed(callback: (why: string) => void): void {
    const why = this.#why;
    if (why !== undefined) queueMicrotask(() => callback(why));
    else this.#listeners.push(callback);
  }

  #close(why: string): void {
    if (this.#why !== undefined) return;
    this.#why = why;
    for (const reject of this.#pending) reject(new Error(why));
    this.#pending.clear();
    for (const listener of this.#listeners.splice(0)) listener(why);
  }
}
