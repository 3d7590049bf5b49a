/** What a world tells the backend that it is made with. */
import type { Logger } from '../core/logger';

/** Mutual TLS between the processes of a job. */
export interface TlsOptions {
  /** PEM of the authority that signed all ranks' certificates. */
  readonly ca: string;
  /** PEM of this rank's certificate. */
  readonly cert: string;
  /** PEM of this rank's private key. */
  readonly key: string;
}

/** The kinds that options, flags and variables take; one that is not there is refused by the backend, which says why. */
export const DATA_PLANES = ['auto', 'grpc', 'socket', 'native'] as const;

/** How tensors travel between processes; 'auto' chooses, and says why in the log. */
export type DataPlane = (typeof DATA_PLANES)[number];

/** What a backend is told when a world is made; a factory takes what it needs. */
export interface BackendInit {
  readonly rank: number;
  readonly worldSize: number;
  /** Position among the ranks of this machine: which device is this rank's. Default: `rank`. */
  readonly localRank?: number | undefined;
  /** Milliseconds that a call may wait where it does not say otherwise. */
  readonly timeoutMs?: number | undefined;
  /** Milliseconds that all ranks have to join; default: `timeoutMs`. */
  readonly joinTimeoutMs?: number | undefined;
  /** Where rank 0 listens. */
  readonly masterAddr?: string | undefined;
  readonly masterPort?: number | undefined;
  /** Secret that all ranks of the job share. */
  readonly token?: string | undefined;
  /** Certificates for connections between ranks; without, they are not encrypted. */
  readonly tls?: TlsOptions | undefined;
  /** Number of this start of the job; a restarted job has the next one. Default 0. */
  readonly generation?: number | undefined;
  /** How tensors travel; default 'auto'. */
  readonly dataPlane?: DataPlane | undefined;
  /** 'external': a process of its own serves the job's store ('lockstep store'); default: rank 0 does. */
  readonly store?: 'rank0' | 'external' | undefined;
  /** False: results need not have the bits of rank order, where another order is faster. Default true. */
  readonly deterministic?: boolean | undefined;
  /** Note where in the program each call was made, for messages; default: the backend's own. */
  readonly callSites?: boolean | undefined;
  readonly logger?: Logger | undefined;
  /** Options of this backend alone; it checks them. */
  readonly options?: unknown;
}
