/** One session with the store, the client's end: connect, prove, ask. */
import { Client, status, type ClientDuplexStream } from '@grpc/grpc-js';
import { systemClock } from '../../core/clock';
import {
  BackendUnavailableError,
  ClosedError,
  CollectiveTimeoutError,
  PeerLostError,
  asError,
} from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import type { JobIdentity } from './endpoint';
import { fromFailure } from './failure';
import { clientTls } from './grpc-credentials';
import { HandshakeError } from './handshake';
import { connectHandshake } from './handshake-exchange';
import { hostPort } from './host-address';
import { MessageQueue } from './message-queue';
import { storeCodec, type Operation, type Response, type Result, type ServerMessage } from './proto';

/** How much longer than the store itself a client waits for its answer that the time is over. */
const ANSWER_GRACE_MS = 1000;
/** How long a session that ends waits for the store to take its last message. */
const LEAVE_MS = 1000;

/** The longest that a timer takes; and so long that it is as good as never, with room for gRPC's jitter. */
const NEVER_MS = 2 ** 31 - 1;
const HOUR_MS = 3_600_000;

interface Pending {
  readonly op: string;
  resolve(result: Result): void;
  reject(error: Error): void;
}

/** The address answered nothing, or not as a store; another attempt may succeed. */
export class NoStoreError extends BackendUnavailableError {}

/** One attempt at one address: `open` either gives a session that both sides have proved, or rejects. */
export class StoreConnection {
  /** Of the store's machine, as it was reached. */
  readonly address: string;
  readonly #identity: JobIdentity;
  /** 'host:port', for messages. */
  readonly #place: string;
  readonly #client: Client;
  readonly #call: ClientDuplexStream<Buffer, Buffer>;
  readonly #codec = storeCodec();
  readonly #handshake = new MessageQueue();
  readonly #pending = new Map<number, Pending>();
  readonly #lostListeners = new Set<(reason: Error) => void>();
  #nextId = 1;
  #isOpen = false;
  #end: Error | undefined;

  private constructor(identity: JobIdentity, host: string, address: string, port: number) {
    this.#identity = identity;
    this.address = address;
    this.#place = hostPort(address, port);
    const tls = clientTls(identity.tls, host);
    this.#client = new Client(targetOf(address, port), tls.credentials, {
      'grpc.enable_http_proxy': 0, // ranks talk to each other directly, whatever the environment says of the web
      'grpc.use_local_subchannel_pool': 1,
      'grpc.enable_retries': 0,
      // The rendezvous tries again with a client of its own; one that did so too would knock at the store and leave.
      'grpc.initial_reconnect_backoff_ms': HOUR_MS,
      'grpc.max_reconnect_backoff_ms': HOUR_MS,
      'grpc.max_receive_message_length': -1,
      'grpc.client_idle_timeout_ms': NEVER_MS,
      'grpc.enable_channelz': 0,
      ...tls.options,
    });
    const raw = (bytes: Buffer): Buffer => bytes;
    this.#call = this.#client.makeBidiStreamRequest(this.#codec.path, raw, raw);
    this.#call.on('data', (bytes: Buffer) => this.#receive(bytes));
    this.#call.on('end', () => this.#lose('the store ended the session'));
    this.#call.on('error', (error: Error & { readonly code?: number; readonly details?: string }) =>
      this.#lose(describeStatus(error)),
    );
  }

  /**
   * @param host the name that `address` was found under, which a certificate must carry
   * @throws NoStoreError if no store answers there within `timeoutMs`
   * @throws HandshakeError if the store is not this job's, or does not want this process
   */
  static async open(
    identity: JobIdentity,
    host: string,
    address: string,
    port: number,
    timeoutMs: number,
  ): Promise<StoreConnection> {
    const connection = new StoreConnection(identity, host, address, port);
    const giveUp = (): void => connection.#lose(`no answer within ${Math.round(timeoutMs)} ms`);
    const timer = systemClock.schedule(giveUp, timeoutMs, true);
    try {
      await connection.#prove();
      return connection;
    } catch (thrown) {
      // The store is told why this end refuses it; nobody is left to tell otherwise.
      if (thrown instanceof HandshakeError) await connection.#leave(thrown);
      else connection.#shut(asError(thrown));
      throw thrown;
    } finally {
      timer.cancel();
    }
  }

  /** Why the session is over; undefined while it is not. */
  get end(): Error | undefined {
    return this.#end;
  }

  /** Call `listener` once if the store goes away; not after close(). */
  onLost(listener: (reason: Error) => void): void {
    this.#lostListeners.add(listener);
  }

  /**
   * Ask, and wait for the answer. The store keeps the time, since it knows what is missing; this end only adds a grace.
   * @throws CollectiveTimeoutError; PeerLostError if the store goes away; ClosedError after close(); what the store says
   */
  request(op: string, operation: Operation, timeoutMs: number): Promise<Result> {
    if (this.#end !== undefined) return Promise.reject(this.#end);
    const id = this.#nextId;
    this.#nextId = (id % 0xffff_ffff) + 1;
    return new Promise<Result>((resolve, reject) => {
      const timer = systemClock.schedule(
        () => {
          this.#pending.delete(id);
          reject(this.#silence(op, timeoutMs));
        },
        timeoutMs + ANSWER_GRACE_MS,
        true, // an awaited answer keeps the process alive, as the connection does
      );
      const settled = (): void => {
        this.#pending.delete(id);
        timer.cancel();
      };
      this.#pending.set(id, {
        op,
        resolve: (result) => (settled(), resolve(result)),
        reject: (error) => (settled(), reject(error)),
      });
      this.#call.write(this.#codec.encodeClientMessage({ request: { id, timeoutMs, ...operation } }));
    });
  }

  /** Say goodbye and leave; requests that wait reject with ClosedError. Idempotent. */
  async close(): Promise<void> {
    if (this.#end !== undefined) return;
    this.#call.write(this.#codec.encodeClientMessage({ goodbye: {} }));
    await this.#leave(new ClosedError(`store: the session of rank ${this.#identity.rank} is closed.`));
  }

  /** End the stream, and wait a little until what was written has left. */
  async #leave(reason: Error): Promise<void> {
    this.#settleAll(reason);
    this.#call.end();
    await new Promise<void>((resolve) => {
      const timer = systemClock.schedule(resolve, LEAVE_MS, true);
      this.#call.once('status', () => {
        timer.cancel();
        resolve();
      });
    });
    this.#client.close();
  }

  async #prove(): Promise<void> {
    const { generation, rank, worldSize, token } = this.#identity;
    const channel = {
      send: (handshake: Uint8Array) => void this.#call.write(this.#codec.encodeClientMessage({ handshake })),
      receive: () => this.#handshake.receive(),
    };
    await connectHandshake(channel, { purpose: 'store', generation, rank, worldSize, peerRank: null }, token);
    this.#isOpen = true;
  }

  #receive(bytes: Buffer): void {
    let message: ServerMessage;
    try {
      message = this.#codec.decodeServerMessage(bytes);
    } catch {
      return this.#lose('what answers is no store of Lockstep');
    }
    if ('handshake' in message) this.#handshake.push(message.handshake);
    else if ('response' in message) this.#settle(message.response);
    else if ('refusal' in message) this.#shut(fromFailure(message.refusal, 'store', this.#identity.rank));
    else this.#lose('the store was closed');
  }

  #settle(response: Response): void {
    const pending = this.#pending.get(response.id);
    if (pending === undefined) return; // its time was over here
    if ('failure' in response) pending.reject(fromFailure(response.failure, pending.op, this.#identity.rank));
    else pending.resolve(response);
  }

  #lose(how: string): void {
    if (this.#end !== undefined) return;
    if (!this.#isOpen) {
      this.#shut(new NoStoreError(`store at ${this.#place}: ${how}`));
      return;
    }
    const reason = new PeerLostError(
      `the store at ${this.#place}, which rank 0 or 'lockstep store' serves, is gone: ${withoutFullStop(how)}. See what rank 0 says; the job has to be started again.`,
      { op: 'store', rank: this.#identity.rank, ranks: [0] },
    );
    this.#shut(reason);
    for (const listener of this.#lostListeners) listener(reason);
  }

  #shut(reason: Error): void {
    if (this.#end !== undefined) return;
    this.#settleAll(reason);
    this.#call.cancel();
    this.#client.close();
  }

  #settleAll(reason: Error): void {
    this.#end = reason;
    this.#handshake.fail(reason);
    for (const pending of [...this.#pending.values()]) pending.reject(reason);
  }

  #silence(op: string, timeoutMs: number): Error {
    return new CollectiveTimeoutError(
      `the store at ${this.#place} did not answer within ${timeoutMs} ms and ${ANSWER_GRACE_MS} ms more. Its process (rank 0, or 'lockstep store') is stopped, or busy without yielding.`,
      { op, rank: this.#identity.rank, ranks: [0] },
    );
  }
}

/** As grpc-js takes it, with nothing left to resolve. */
function targetOf(address: string, port: number): string {
  return `${address.includes(':') ? 'ipv6' : 'ipv4'}:${hostPort(address, port)}`;
}

/** 'No connection established. Last error: connect ECONNREFUSED 127.0.0.1:1 (...)': the middle is what helps. */
function describeStatus(error: Error & { readonly code?: number; readonly details?: string }): string {
  const details = error.details ?? error.message;
  const inner = /Last error: (?:Error: )?(.*?)(?: \(.*|\. Resolution note.*)?$/.exec(details)?.[1];
  if (inner !== undefined && inner !== '') return inner;
  return error.code === status.UNAVAILABLE ? 'the connection was lost' : details;
}
