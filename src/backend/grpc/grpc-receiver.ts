/** The receiving half over a gRPC stream that this process opens as a client. */
import { Client, Metadata, status, type ClientDuplexStream, type ServiceError } from '@grpc/grpc-js';
import { systemClock } from '../../core/clock';
import { asError } from '../../core/errors';
import type { TlsOptions } from './endpoint';
import { CHUNK_BYTES } from './frame';
import { clientTls } from './grpc-credentials';
import { HandshakeError, type HandshakeClaims } from './handshake';
import { connectHandshake } from './handshake-exchange';
import type { ReceivingHalf } from './half-link';
import { parseHostPort } from './host-address';
import { MessageQueue } from './message-queue';
import { peerLinkPath } from './proto';
import { tlsFailure } from './tls-failure';

/**
 * [Note: flow control] In grpc-js 1.14 only the client sets the HTTP/2 window, a server's is 64 KiB, which holds a
 * stream of frames to a third of its speed. So frames flow from server to client, and who receives is the client.
 */
const WINDOW_BYTES = 8 * 1024 * 1024;

/** How long a peer that was refused may take to hear of it. */
const LEAVE_MS = 1000;

const CHANNEL_OPTIONS = {
  'grpc-node.flow_control_window': WINDOW_BYTES,
  'grpc.max_receive_message_length': CHUNK_BYTES + 1024,
  'grpc.use_local_subchannel_pool': 1, // else channels to one address share one connection
  'grpc.enable_retries': 0, // else what was sent is kept for a retry
  'grpc.enable_http_proxy': 0, // ranks talk to each other directly
  'grpc.initial_reconnect_backoff_ms': 50,
};

export interface GrpcDialOptions {
  /** 'host:port' */
  readonly target: string;
  readonly tls: TlsOptions | undefined;
  readonly claims: HandshakeClaims;
  readonly token: string | undefined;
  readonly signal: AbortSignal;
}

/** @throws HandshakeError if one side refused the other, else an error of gRPC */
export async function dialGrpc(options: GrpcDialOptions): Promise<GrpcReceiver> {
  const { claims, token, signal } = options;
  signal.throwIfAborted();
  const receiver = new GrpcReceiver(options);
  const onAbort = (): void => receiver.fail(asError(signal.reason));
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    await connectHandshake(receiver, claims, token);
    receiver.pause();
    return receiver;
  } catch (error) {
    if (error instanceof HandshakeError) receiver.leave();
    else receiver.destroy();
    throw error;
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

class GrpcReceiver implements ReceivingHalf {
  readonly #client: Client;
  readonly #stream: ClientDuplexStream<Uint8Array, Uint8Array>;
  readonly #queue = new MessageQueue();
  #onBytes: ((bytes: Uint8Array) => void) | undefined;
  #onClosed: ((why: string) => void) | undefined;
  #why: string | undefined;

  constructor({ target, tls }: GrpcDialOptions) {
    const secure = clientTls(tls, parseHostPort(target).host);
    this.#client = new Client(target, secure.credentials, { ...CHANNEL_OPTIONS, ...secure.options });
    this.#stream = this.#client.makeBidiStreamRequest<Uint8Array, Uint8Array>(
      peerLinkPath(),
      asBuffer,
      (bytes) => bytes,
      new Metadata(),
    );
    this.#stream.on('data', (bytes: Uint8Array) => {
      if (this.#onBytes === undefined) this.#queue.push(bytes);
      else this.#onBytes(bytes);
    });
    this.#stream.on('error', (error: ServiceError) => this.#close(describe(error), asSystemError(error)));
    this.#stream.on('end', () => {
      const why = 'its stream ended without a goodbye (the process ended or was killed)';
      this.#close(why, new Error(why));
    });
  }

  send(message: Uint8Array): void {
    this.#stream.write(message);
  }

  receive(): Promise<Uint8Array> {
    return this.#queue.receive();
  }

  pause(): void {
    if (this.#onBytes === undefined) this.#stream.pause();
  }

  start(onBytes: (bytes: Uint8Array) => void, onClosed: (why: string) => void): void {
    this.#onBytes = onBytes;
    this.#onClosed = onClosed;
    for (const bytes of this.#queue.takeUnread()) onBytes(bytes);
    if (this.#why !== undefined) onClosed(this.#why);
    else this.#stream.resume();
  }

  destroy(): void {
    this.#stream.cancel();
    this.#client.close();
  }

  /** End once the peer has heard what was said last, which grpc-js has not sent yet. */
  leave(): void {
    const timer = systemClock.schedule(() => this.destroy(), LEAVE_MS);
    const finish = (): void => {
      timer.cancel();
      this.destroy();
    };
    this.#stream.once('end', finish).once('error', finish).resume();
    this.#stream.end();
  }

  fail(error: Error): void {
    this.#close(error.message, error);
    this.destroy();
  }

  #close(why: string, error: Error): void {
    if (this.#why !== undefined) return;
    this.#why = why;
    this.#queue.fail(error);
    this.#onClosed?.(why);
  }
}

export type { GrpcReceiver };

/** The codec of the stream: a message is its bytes. */
export function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function describe(error: ServiceError): string {
  return error.code === status.UNAVAILABLE || error.code === status.CANCELLED
    ? `its connection closed without a goodbye (the process ended or was killed): ${error.details}`
    : `the stream broke (${error.message})`;
}

/** As the dialing loop knows it: errors that no further attempt mends are ours, others carry a code of the system. */
function asSystemError(error: ServiceError): Error {
  const code = /\b(ECONNREFUSED|ENOENT)\b/.exec(error.details)?.[1];
  const plain = Object.assign(new Error(error.details, { cause: error }), { code });
  return tlsFailure(plain) ?? plain;
}
