/** How ranks find each other's data planes: each opens an endpoint, tells its address through the store, then connects. */
import type { TlsOptions } from '../backend-init';
import type { Mesh } from './link';

export type { DataPlane, TlsOptions } from '../backend-init';

/** What the job agreed on before anybody connects. */
export interface JobIdentity {
  /** This process's rank in the world. */
  readonly rank: number;
  readonly worldSize: number;
  /** Number of this start of the job; a restarted job has the next one, and refuses processes of the last. */
  readonly generation: number;
  /** The secret that all ranks share; undefined only on loopback without a launcher. */
  readonly token: string | undefined;
  readonly tls: TlsOptions | undefined;
}

/** Where a rank can be reached. JSON-safe: it travels through the store. */
export interface PeerAddress {
  readonly rank: number;
  /** The same on two ranks exactly if they run on one machine, so that Unix sockets work between them. */
  readonly hostId: string;
  /** 'host:port' of this rank's gRPC server, if it has one. */
  readonly grpc: string | null;
  /** Path of this rank's Unix socket, if it listens on one. */
  readonly unixSocket: string | null;
  /** 'host:port' of this rank's TCP socket, if it listens on one. */
  readonly tcpSocket: string | null;
}

export interface Endpoint {
  /** What the other ranks need to know to connect here. */
  readonly address: PeerAddress;
  /**
   * Connect to all other ranks, and wait for those that connect to this one.
   * If it fails, what is connected stays so until close(): a peer that saw it end would take this rank for lost, unless
   * it has been told why before.
   * @param peers addresses of all ranks of the world, by rank, this one included
   * @param signal gives up, with its reason
   * @throws CollectiveTimeoutError naming the ranks that did not connect within `timeoutMs`
   * @throws PeerLostError naming a rank that is gone
   */
  connect(peers: readonly PeerAddress[], timeoutMs: number, signal?: AbortSignal): Promise<Mesh>;
  /** Stop listening; also what connect() opened. Idempotent. */
  close(): Promise<void>;
}
