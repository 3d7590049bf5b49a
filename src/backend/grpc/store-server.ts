/** The store of a job: its gRPC server, in rank 0's process or one of its own. */
import type { Socket } from 'node:net';
import { Server, type ServerDuplexStream } from '@grpc/grpc-js';
import { systemClock, type Timer } from '../../core/clock';
import type { Deadline } from '../../core/deadline';
import { InvalidArgumentError } from '../../core/errors';
import { stderrLogger, type Logger } from '../../core/logger';
import { DEFAULT_STORE_LIMITS, StoreTable, type StoreLimits } from '../store-table';
import type { TlsOptions } from './endpoint';
import { serverCredentials } from './grpc-credentials';
import { HandshakeError } from './handshake';
import { hostPort, parseHostPort, type Lookup } from './host-address';
import { Membership } from './membership';
import { storeCodec } from './proto';
import { RefusalLog } from './refusal-log';
import { storeAddresses } from './store-addresses';
import { listenForStore, type StoreListener } from './store-listener';
import { StoreSession } from './store-session';
import { nameOfKey } from './user-keys';

export interface StoreOptions {
  /** Where ranks connect: MASTER_ADDR. */
  readonly host: string;
  /** MASTER_PORT; 0 takes a free one. */
  readonly port: number;
  readonly worldSize: number;
  /** Number of this start of the job; default 0. */
  readonly generation?: number | undefined;
  /** The job's secret; may be left out on loopback only, or with tls. */
  readonly token?: string | undefined;
  readonly tls?: TlsOptions | undefined;
  readonly limits?: Partial<StoreLimits> | undefined;
  /** Connections at a time; default: 4 a rank, and 16 more. Beyond it the oldest that has proved nothing is closed. */
  readonly maxConnections?: number | undefined;
  /** Milliseconds that a process has from its connection to its proof; default 10 s. */
  readonly handshakeTimeoutMs?: number | undefined;
  readonly logger?: Logger | undefined;
  readonly lookup?: Lookup | undefined;
  /** Until when a name that does not resolve yet is tried again; default: it is an error at once. */
  readonly resolveUntil?: Deadline | undefined;
  /** `host` may be another's address, from which connections are forwarded here; default: that is an error. */
  readonly mayForward?: boolean | undefined;
}

export interface StoreServer {
  /** 'host:port' of each address that it listens at. */
  readonly addresses: readonly string[];
  readonly port: number;
  /** If the start of the job has failed: wait until every rank knows why or is gone, at most `timeoutMs`. */
  informAll(timeoutMs: number): Promise<void>;
  /** Answers under way leave first, then sessions are told goodbye. Idempotent; the port is free afterwards. */
  close(): Promise<void>;
}

const HANDSHAKE_TIMEOUT_MS = 10_000;
/** How long close() waits for processes to take their last answers. */
const CLOSE_GRACE_MS = 1000;

/**
 * Serve a job's store.
 *
 * @throws BackendUnavailableError if the port is taken, or `host` did not resolve in time
 * @throws InvalidArgumentError if `host` is not this machine, or other machines could connect and neither token nor tls
 *   protects the job
 */
export async function startStore(options: StoreOptions): Promise<StoreServer> {
  const isProtected = options.token !== undefined || options.tls !== undefined;
  const { host, lookup, resolveUntil: deadline, mayForward = false, logger = stderrLogger } = options;
  const addresses = await storeAddresses({ host, isProtected, mayForward, logger, lookup, deadline });
  const server = new RunningStore(options);
  await server.listen(addresses);
  return server;
}

class RunningStore implements StoreServer {
  readonly #options: StoreOptions;
  readonly #logger: Logger;
  readonly #refusals: RefusalLog;
  readonly #server: Server;
  readonly #membership: Membership;
  readonly #sessions = new Set<StoreSession>();
  /** By 'address:port', oldest first: connections that have not proved themselves, and their time. */
  readonly #unproven = new Map<string, { readonly socket: Socket; readonly timer: Timer }>();
  #listener: StoreListener | undefined;
  #closing: Promise<void> | undefined;

  constructor(options: StoreOptions) {
    this.#options = options;
    this.#logger = options.logger ?? stderrLogger;
    this.#refusals = new RefusalLog(this.#logger, 'the store');
    this.#membership = new Membership(options.worldSize);
    const limits = { ...DEFAULT_STORE_LIMITS, ...options.limits };
    const { generation = 0, worldSize, token, handshakeTimeoutMs = HANDSHAKE_TIMEOUT_MS } = options;
    const job = {
      handshake: {
        token,
        expected: { purpose: 'store', generation, worldSize, ownRank: null },
        provenNonces: new Set<string>(),
      },
      handshakeTimeoutMs,
      membership: this.#membership,
      table: new StoreTable(limits, nameOfKey),
      onOpen: (session: StoreSession) => this.#proven(session.peer),
      onRefused: (session: StoreSession, reason: Error) => this.#onRefused(session, reason),
      onClosed: (session: StoreSession) => this.#sessions.delete(session),
    } as const;
    this.#server = new Server({
      // compareAndSet brings two values; a `wait` for as many keys as are allowed is shorter. Of a process that has not
      // proved itself as much may lie here, for each of its streams: a rank needs no more than one a connection.
      'grpc.max_receive_message_length': 2 * DEFAULT_STORE_LIMITS.valueBytes + limits.keyBytes + 1024,
      'grpc.max_send_message_length': -1,
      'grpc.max_concurrent_streams': 1,
      'grpc.enable_channelz': 0,
    });
    const { path } = storeCodec();
    const raw = (bytes: Buffer): Buffer => bytes;
    // Messages are decoded by the session, which knows how much it may read of a process that has not proved itself.
    const method = {
      requestStream: true,
      responseStream: true,
      requestSerialize: raw,
      requestDeserialize: raw,
    } as const;
    this.#server.addService(
      { Session: { path, ...method, responseSerialize: raw, responseDeserialize: raw } },
      { Session: (call: ServerDuplexStream<Buffer, Buffer>) => void this.#sessions.add(new StoreSession(call, job)) },
    );
  }

  get addresses(): readonly string[] {
    return (this.#listener?.addresses ?? []).map((address) => hostPort(address, this.port));
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  async listen(addresses: readonly string[]): Promise<void> {
    const { port, worldSize, maxConnections = 4 * worldSize + 16, tls, handshakeTimeoutMs } = this.#options;
    const injector = this.#server.createConnectionInjector(serverCredentials(tls));
    this.#listener = await listenForStore(addresses, port, (socket) => {
      const peer = `${socket.remoteAddress}:${socket.remotePort}`;
      const giveUp = (): void => void socket.destroy();
      const timer = systemClock.schedule(giveUp, handshakeTimeoutMs ?? HANDSHAKE_TIMEOUT_MS);
      this.#unproven.set(peer, { socket, timer });
      if ((this.#listener?.sockets.size ?? 0) > maxConnections) this.#evictOldest();
      socket.once('close', () => this.#onGone(peer));
      injector.injectConnection(socket);
    });
    this.#logger.info(`store: listening at ${this.addresses.join(' and ')} for ${worldSize} ranks`);
  }

  informAll(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = systemClock.schedule(resolve, timeoutMs, true);
      this.#membership.whenAllInformed(() => {
        timer.cancel();
        resolve();
      });
    });
  }

  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    this.#listener?.stop();
    for (const session of this.#sessions) session.close();
    await new Promise<void>((resolve) => {
      // A stopped process takes no answers: then neither call below would end, but its socket can be cut.
      const grace = systemClock.schedule(resolve, CLOSE_GRACE_MS, true);
      this.#server.tryShutdown(() => {
        grace.cancel();
        resolve();
      });
    });
    this.#server.forceShutdown();
    for (const peer of [...this.#unproven.keys()]) this.#proven(peer);
    for (const socket of this.#listener?.sockets ?? []) socket.destroy();
    await this.#listener?.close();
  }

  /** A rank proves itself within milliseconds, so strangers that sit and wait keep nobody out: the oldest gives way. */
  #evictOldest(): void {
    const [oldest] = this.#unproven.values();
    oldest?.socket.destroy(); // its end is noted like that of any other stranger
  }

  #proven(peer: string): void {
    this.#unproven.get(peer)?.timer.cancel();
    this.#unproven.delete(peer);
  }

  /** A connection ended; before the proof of the token it was none of a rank that is well. */
  #onGone(peer: string): void {
    if (!this.#unproven.has(peer)) return;
    this.#proven(peer);
    const what =
      'it did not prove the job token before its connection ended or its time was over (a port scan, another protocol, or a rank that failed).';
    this.#refusals.note('unproven', parseHostPort(peer).host, what);
  }

  #onRefused({ peer }: StoreSession, reason: Error): void {
    this.#proven(peer); // what follows says more than that its connection ends
    const refusal = reason instanceof HandshakeError ? reason.refusal : undefined;
    if (refusal !== 'generation') this.#membership.noteRefusal(reason.message);
    // A process of the job that counts the ranks otherwise will never join: [Note: failed start].
    if (reason instanceof HandshakeError && refusal === 'world-size') {
      const { ranks } = reason.context;
      this.#membership.fail(new InvalidArgumentError(`rendezvous: ${reason.message}`, { op: 'join', ranks }));
    }
    this.#refusals.note(refusal ?? 'request', parseHostPort(peer).host, reason.message);
  }
}
