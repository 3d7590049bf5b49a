/** What a data plane has to provide; how ranks find and lose each other is the same for all of them. */
import type { Logger } from '../../core/logger';
import type { Arrivals } from './arrivals';
import type { JobIdentity, PeerAddress } from './endpoint';
import type { HandshakeClaims, HandshakeExpectation } from './handshake';
import type { ReceivingHalf } from './half-link';

export interface Transport {
  readonly dataPlane: 'grpc' | 'socket';
  /** Where peers connect to. */
  readonly address: PeerAddress;
  /**
   * Connect to a peer and prove the token; one attempt.
   * @throws InvalidArgumentError if trying again is of no use, else a system error
   */
  dial(peer: PeerAddress, signal: AbortSignal): Promise<ReceivingHalf>;
  /** Take no more connections; those that have proved the token stay. Idempotent. */
  stopListening(): Promise<void>;
  /** End everything. Idempotent. */
  close(): Promise<void>;
}

export interface TransportOptions {
  readonly identity: JobIdentity;
  /** Addresses of this machine to try, in this order; one of them is used. */
  readonly bindAddresses: readonly string[];
  /** What peers are told to connect to; undefined: the address that was bound. */
  readonly advertisedHost: string | undefined;
  readonly arrivals: Arrivals;
  readonly logger: Logger;
  /** How long a connection may take to prove the token. */
  readonly handshakeTimeoutMs?: number | undefined;
}

/** Unproven connections that a rank holds at a time; all ranks may come at once. */
export function maxUnproven(identity: JobIdentity): number {
  return 64 + 2 * identity.worldSize;
}

export function claimsTo(identity: JobIdentity, peerRank: number): HandshakeClaims {
  const { rank, worldSize, generation } = identity;
  return { purpose: 'link', rank, worldSize, generation, peerRank };
}

export function expectationOf(identity: JobIdentity): HandshakeExpectation {
  const { rank, worldSize, generation } = identity;
  return { purpose: 'link', ownRank: rank, worldSize, generation };
}
