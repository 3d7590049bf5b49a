/** The receiving half over a socket: connects, proves the token, then hands on what is read into one buffer. */
import { connect as connectSocket, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { asError } from '../../core/errors';
import type { TlsOptions } from './endpoint';
import type { HandshakeClaims } from './handshake';
import { connectHandshake } from './handshake-exchange';
import { HandshakeInbox, frameHandshake } from './handshake-inbox';
import type { ReceivingHalf } from './half-link';
import { KEEP_ALIVE_MS } from './peer-listener';
import { tlsFailure } from './tls-failure';

/** One read at most; a pair of ranks keeps one such buffer in each process. */
const READ_BYTES = 256 * 1024;

export type SocketTarget = { readonly path: string } | { readonly host: string; readonly port: number };

export interface SocketDialOptions {
  readonly target: SocketTarget;
  readonly tls: TlsOptions | undefined;
  readonly claims: HandshakeClaims;
  readonly token: string | undefined;
  readonly signal: AbortSignal;
}

/** @throws HandshakeError if one side refused the other, else a system error */
export async function dialSocket(options: SocketDialOptions): Promise<SocketReceiver> {
  const { claims, token, signal } = options;
  signal.throwIfAborted();
  const receiver = new SocketReceiver(options);
  const onAbort = (): void => receiver.fail(asError(signal.reason));
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    await connectHandshake(receiver, claims, token);
    return receiver;
  } catch (error) {
    receiver.destroySoon();
    throw error;
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

class SocketReceiver implements ReceivingHalf {
  readonly #socket: Socket;
  readonly #inbox = new HandshakeInbox();
  #onBytes: ((bytes: Uint8Array) => void) | undefined;
  #onClosed: ((why: string) => void) | undefined;
  #why: string | undefined;
  #error: Error | undefined;

  constructor({ target, tls }: SocketDialOptions) {
    const onread = {
      buffer: Buffer.allocUnsafeSlow(READ_BYTES),
      callback: (bytes: number, buffer: Uint8Array): boolean => this.#read(buffer.subarray(0, bytes)),
    };
    const common = { ...target, onread };
    this.#socket =
      tls === undefined
        ? connectSocket({ ...common, noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS })
        : connectTls({ ...common, ...tls, minVersion: 'TLSv1.3' });
    if (tls !== undefined) this.#socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_MS);
    this.#socket.on('error', (error) => {
      this.#error ??= tlsFailure(error) ?? error;
    });
    this.#socket.once('end', () => this.#socket.destroySoon()); // an error of TLS may still follow
    this.#socket.once('close', () => this.#close());
  }

  send(message: Uint8Array): void {
    this.#socket.write(frameHandshake(message));
  }

  receive(): Promise<Uint8Array> {
    const message = this.#inbox.receive();
    this.#socket.resume();
    return message;
  }

  start(onBytes: (bytes: Uint8Array) => void, onClosed: (why: string) => void): void {
    this.#onBytes = onBytes;
    this.#onClosed = onClosed;
    const early = this.#inbox.takeUnread();
    if (early.byteLength > 0) onBytes(early);
    if (this.#why !== undefined) onClosed(this.#why);
    else this.#socket.resume();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  /** What was said last may still leave. */
  destroySoon(): void {
    this.#socket.destroySoon();
  }

  fail(error: Error): void {
    this.#socket.destroy(error);
  }

  /** Returns whether to go on reading. */
  #read(bytes: Uint8Array): boolean {
    if (this.#onBytes !== undefined) {
      this.#onBytes(bytes);
      return true;
    }
    this.#inbox.push(bytes);
    return !this.#inbox.isFull;
  }

  #close(): void {
    if (this.#why !== undefined) return;
    this.#why =
      this.#error === undefined
        ? 'its connection closed without a goodbye (the process ended or was killed)'
        : `the connection broke (${this.#error.message})`;
    this.#inbox.fail(this.#error ?? new Error('the connection was closed during the handshake'));
    this.#onClosed?.(this.#why);
    this.#socket.destroy();
  }
}

export type { SocketReceiver };
