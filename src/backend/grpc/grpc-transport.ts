/** The data plane 'grpc': one stream for each direction of each pair of ranks. Works wherever gRPC works. */
import { Server } from '@grpc/grpc-js';
import type { Socket } from 'node:net';
import { InvalidArgumentError } from '../../core/errors';
import type { JobIdentity, PeerAddress } from './endpoint';
import { Gate, type Visitor } from './gate';
import { serverCredentials } from './grpc-credentials';
import { GrpcSender, type FrameStream } from './grpc-sender';
import { asBuffer, dialGrpc, type GrpcReceiver } from './grpc-receiver';
import { HandshakeError, MAX_HANDSHAKE_BYTES } from './handshake';
import { acceptHandshake } from './handshake-exchange';
import { hostPort } from './host-address';
import { hostId } from './host-id';
import { MessageQueue } from './message-queue';
import { listenForPeers, type PeerListener } from './peer-listener';
import { peerLinkPath } from './proto';
import { RefusalLog } from './refusal-log';
import { claimsTo, expectationOf, maxUnproven, type Transport, type TransportOptions } from './transport';

/** @throws BackendUnavailableError if no address can be bound */
export async function openGrpcTransport(options: TransportOptions): Promise<GrpcTransport> {
  const transport = new GrpcTransport(options);
  try {
    await transport.open();
    return transport;
  } catch (error) {
    await transport.close();
    throw error;
  }
}

interface Connection {
  readonly socket: Socket;
  readonly visitor: Visitor;
}

/**
 * The listening socket is ours, and what it accepts is injected into the gRPC server: only so can connections be
 * counted, timed, and told apart before gRPC has parsed anything of theirs.
 */
class GrpcTransport implements Transport {
  readonly dataPlane = 'grpc';
  readonly #options: TransportOptions;
  readonly #identity: JobIdentity;
  readonly #gate: Gate;
  readonly #server: Server;
  readonly #provenNonces = new Set<string>();
  /** By the peer's address, which is all that a stream knows of its connection. */
  readonly #connections = new Map<string, Connection>();
  readonly #receivers = new Set<GrpcReceiver>();
  #listener: PeerListener | undefined;
  #address: PeerAddress | undefined;

  constructor(options: TransportOptions) {
    this.#options = options;
    this.#identity = options.identity;
    const log = new RefusalLog(options.logger, `rank ${options.identity.rank}`);
    this.#gate = new Gate(log, maxUnproven(options.identity), options.handshakeTimeoutMs);
    this.#server = new Server({
      'grpc.max_receive_message_length': MAX_HANDSHAKE_BYTES, // peers send nothing but handshakes
      'grpc.max_concurrent_streams': 1,
    });
    const path = peerLinkPath();
    const codec = {
      requestSerialize: asBuffer,
      requestDeserialize: same,
      responseSerialize: asBuffer,
      responseDeserialize: same,
    };
    this.#server.addService(
      { Frames: { path, requestStream: true, responseStream: true, ...codec } },
      { Frames: (stream: FrameStream) => void this.#welcome(stream) },
    );
  }

  get address(): PeerAddress {
    if (this.#address === undefined) throw new InvalidArgumentError('the transport is not open.');
    return this.#address;
  }

  async open(): Promise<void> {
    const { bindAddresses, advertisedHost } = this.#options;
    const injector = this.#server.createConnectionInjector(serverCredentials(this.#identity.tls));
    this.#listener = await listenForPeers(bindAddresses, (socket) => {
      const key = `${socket.remoteAddress}:${socket.remotePort}`;
      this.#connections.set(key, { socket, visitor: this.#gate.admit(socket) });
      socket.once('close', () => this.#connections.delete(key));
      injector.injectConnection(socket);
    });
    const { host, port } = this.#listener;
    this.#address = {
      rank: this.#identity.rank,
      hostId: hostId(),
      grpc: hostPort(advertisedHost ?? host, port),
      unixSocket: null,
      tcpSocket: null,
    };
  }

  async dial(peer: PeerAddress, signal: AbortSignal): Promise<GrpcReceiver> {
    if (peer.grpc === null) {
      throw new InvalidArgumentError(
        `connect: rank ${peer.rank} does not offer the data plane 'grpc' that rank ${this.#identity.rank} uses. Give all ranks the same dataPlane.`,
        { ranks: [peer.rank] },
      );
    }
    const { token, tls } = this.#identity;
    const claims = claimsTo(this.#identity, peer.rank);
    const receiver = await dialGrpc({ target: peer.grpc, tls, claims, token, signal });
    if (signal.aborted) receiver.destroy(); // it came through in the turn in which everything was given up
    signal.throwIfAborted();
    this.#receivers.add(receiver);
    return receiver;
  }

  async stopListening(): Promise<void> {
    this.#gate.close();
    await this.#listener?.stop();
  }

  async close(): Promise<void> {
    await this.stopListening();
    for (const receiver of this.#receivers) receiver.destroy();
    this.#receivers.clear();
    for (const { socket } of [...this.#connections.values()]) socket.destroy();
    this.#server.forceShutdown();
  }

  /** Runs the handshake with who opened a stream; does not reject. */
  async #welcome(stream: FrameStream): Promise<void> {
    const connection = this.#connections.get(stream.getPeer());
    if (connection === undefined) {
      stream.end();
      return;
    }
    const { socket, visitor } = connection;
    const queue = new MessageQueue();
    const onData = (message: Uint8Array): void => queue.push(message);
    stream.on('error', (error) => queue.fail(error));
    stream.on('cancelled', () => queue.fail(new Error('cancelled')));
    stream.on('data', onData);
    stream.once('end', () => queue.fail(new Error('ended')));
    const { arrivals } = this.#options;
    try {
      const hello = await acceptHandshake(
        { send: (message) => void stream.write(message), receive: () => queue.receive() },
        {
          token: this.#identity.token,
          expected: expectationOf(this.#identity),
          provenNonces: this.#provenNonces,
          admit: (claims) => arrivals.admit(claims),
        },
      );
      visitor.prove();
      stream.removeListener('data', onData);
      arrivals.add(hello.rank, new GrpcSender(stream, socket));
      if (queue.takeUnread().length > 0) socket.destroy(); // a rank says nothing more here
    } catch (error) {
      stream.end();
      if (error instanceof HandshakeError) visitor.refuse(error.refusal, error.message);
      // Else the stream has ended; the gate's deadline is for its connection.
    }
  }
}

function same<T>(value: T): T {
  return value;
}

export type { GrpcTransport };
