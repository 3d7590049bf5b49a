/** The data plane 'socket': Unix sockets between ranks of one machine, TCP otherwise, TLS over TCP where asked for. */
import { rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:tls';
import { InvalidArgumentError } from '../../core/errors';
import type { JobIdentity, PeerAddress } from './endpoint';
import { Gate, type Visitor } from './gate';
import { HandshakeError } from './handshake';
import { acceptHandshake } from './handshake-exchange';
import { HandshakeInbox, frameHandshake } from './handshake-inbox';
import { hostPort, parseHostPort } from './host-address';
import { hostId } from './host-id';
import { listenAtPath, listenForPeers, type PeerListener } from './peer-listener';
import { RefusalLog } from './refusal-log';
import { socketFolderPrefix, sweepSocketFolders } from './socket-folder';
import { SocketSender } from './socket-sender';
import { dialSocket, type SocketReceiver, type SocketTarget } from './socket-receiver';
import { tlsReason } from './tls-failure';
import { claimsTo, expectationOf, maxUnproven, type Transport, type TransportOptions } from './transport';

/** Linux allows 107 bytes, macOS 103. */
const MAX_SOCKET_PATH_BYTES = 100;

/** @throws BackendUnavailableError if no address can be bound */
export async function openSocketTransport(options: TransportOptions): Promise<SocketTransport> {
  const transport = new SocketTransport(options);
  try {
    await transport.open();
    return transport;
  } catch (error) {
    await transport.close();
    throw error;
  }
}

class SocketTransport implements Transport {
  readonly dataPlane = 'socket';
  readonly #options: TransportOptions;
  readonly #identity: JobIdentity;
  readonly #gate: Gate;
  readonly #tlsServer: TlsServer | undefined;
  readonly #provenNonces = new Set<string>();
  /** Connections whose TLS handshake is under way, by the peer's address. */
  readonly #visitors = new Map<string, Visitor>();
  readonly #open = new Set<{ destroy(): void }>();
  #listener: PeerListener | undefined;
  #stopUnix: (() => Promise<void>) | undefined;
  #folder: string | undefined;
  /** Synchronous, since it also runs when the process exits while it connects. */
  readonly #removeFolder = (): void => {
    if (this.#folder !== undefined) rmSync(this.#folder, { recursive: true, force: true });
    this.#folder = undefined;
  };
  #address: PeerAddress | undefined;

  constructor(options: TransportOptions) {
    this.#options = options;
    this.#identity = options.identity;
    const log = new RefusalLog(options.logger, `rank ${options.identity.rank}`);
    this.#gate = new Gate(log, maxUnproven(options.identity), options.handshakeTimeoutMs);
    this.#tlsServer = this.#createTlsServer();
  }

  get address(): PeerAddress {
    if (this.#address === undefined) throw new InvalidArgumentError('the transport is not open.');
    return this.#address;
  }

  async open(): Promise<void> {
    const { bindAddresses, advertisedHost } = this.#options;
    this.#listener = await listenForPeers(bindAddresses, (socket) => this.#onTcpSocket(socket));
    const { host, port } = this.#listener;
    this.#address = {
      rank: this.#identity.rank,
      hostId: hostId(),
      grpc: null,
      unixSocket: await this.#listenOnUnixSocket(),
      tcpSocket: hostPort(advertisedHost ?? host, port),
    };
  }

  async dial(peer: PeerAddress, signal: AbortSignal): Promise<SocketReceiver> {
    const { token, tls } = this.#identity;
    const claims = claimsTo(this.#identity, peer.rank);
    const receiver = await dialSocket({ target: this.#targetOf(peer), tls, claims, token, signal });
    if (signal.aborted) receiver.destroy(); // it came through in the turn in which everything was given up
    signal.throwIfAborted();
    this.#open.add(receiver);
    return receiver;
  }

  async stopListening(): Promise<void> {
    this.#gate.close();
    await this.#listener?.stop();
    await this.#stopUnix?.();
    process.removeListener('exit', this.#removeFolder);
    this.#removeFolder();
  }

  async close(): Promise<void> {
    await this.stopListening();
    for (const connection of this.#open) connection.destroy();
    this.#open.clear();
  }

  /** Under TLS everything goes over TCP, so that "every connection is TLS" has no exception to explain. */
  async #listenOnUnixSocket(): Promise<string | null> {
    if (this.#tlsServer !== undefined || process.platform === 'win32') return null;
    sweepSocketFolders(tmpdir());
    this.#folder = await mkdtemp(socketFolderPrefix(tmpdir())); // mode 0700
    process.once('exit', this.#removeFolder);
    const path = join(this.#folder, `rank-${this.#identity.rank}.sock`);
    if (Buffer.byteLength(path) > MAX_SOCKET_PATH_BYTES) {
      this.#options.logger.info(`no Unix socket: its path would be too long (${path}). Set TMPDIR to a shorter one.`);
      return null;
    }
    this.#stopUnix = await listenAtPath(path, (socket) => {
      void this.#welcome(socket, this.#gate.admit(socket));
    });
    return path;
  }

  #targetOf(peer: PeerAddress): SocketTarget {
    const own = this.address;
    if (own.unixSocket !== null && peer.unixSocket !== null && own.hostId === peer.hostId) {
      return { path: peer.unixSocket };
    }
    if (peer.tcpSocket !== null) return parseHostPort(peer.tcpSocket);
    throw new InvalidArgumentError(
      `connect: rank ${peer.rank} does not offer the data plane 'socket' that rank ${this.#identity.rank} uses. Give all ranks the same dataPlane.`,
      { ranks: [peer.rank] },
    );
  }

  #createTlsServer(): TlsServer | undefined {
    const { tls } = this.#identity;
    if (tls === undefined) return undefined;
    const { ca, cert, key } = tls;
    const server = createTlsServer({
      ca,
      cert,
      key,
      requestCert: true,
      rejectUnauthorized: true,
      minVersion: 'TLSv1.3',
    });
    server.on('secureConnection', (socket) => {
      const visitor = this.#visitors.get(peerOf(socket));
      if (visitor === undefined) socket.destroy();
      else void this.#welcome(socket, visitor);
    });
    server.on('tlsClientError', (error, socket) => {
      this.#visitors.get(peerOf(socket))?.refuse('tls', `TLS failed (${tlsReason(error.message)}).`);
    });
    return server;
  }

  #onTcpSocket(socket: Socket): void {
    const visitor = this.#gate.admit(socket);
    if (this.#tlsServer === undefined) {
      void this.#welcome(socket, visitor);
      return;
    }
    const key = peerOf(socket);
    this.#visitors.set(key, visitor);
    socket.once('close', () => this.#visitors.delete(key));
    this.#tlsServer.emit('connection', socket);
  }

  /** Runs the handshake with who came; does not reject. */
  async #welcome(socket: Socket, visitor: Visitor): Promise<void> {
    const inbox = new HandshakeInbox();
    const onData = (bytes: Uint8Array): void => {
      inbox.push(bytes);
      if (inbox.isFull) socket.pause();
    };
    socket.on('error', () => undefined); // 'close' follows
    socket.on('data', onData);
    socket.once('close', () => inbox.fail(new Error('closed')));
    const channel = {
      send: (message: Uint8Array): void => void socket.write(frameHandshake(message)),
      receive: () => inbox.receive(),
    };
    const { arrivals } = this.#options;
    try {
      const hello = await acceptHandshake(channel, {
        token: this.#identity.token,
        expected: expectationOf(this.#identity),
        provenNonces: this.#provenNonces,
        admit: (claims) => arrivals.admit(claims),
      });
      visitor.prove();
      socket.removeListener('data', onData);
      this.#open.add(socket);
      arrivals.add(hello.rank, new SocketSender(socket));
      if (inbox.takeUnread().byteLength > 0) socket.destroy(); // a rank says nothing more here
    } catch (error) {
      if (error instanceof HandshakeError) visitor.refuse(error.refusal, error.message);
      socket.destroySoon();
      // Else the connection has ended, of which the gate has told.
    }
  }
}

function peerOf(socket: Socket): string {
  return `${socket.remoteAddress}:${socket.remotePort}`;
}

export type { SocketTransport };
