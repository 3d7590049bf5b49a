/** What groups and worlds tell their listeners. Progress lines, metrics and traces are made of these. */

/** A call of one rank begins. */
export interface CollectiveStart {
  /** 'allReduce', 'broadcast', ..., and also 'send', 'recv', 'batch'. */
  readonly op: string;
  /** Number of the collective in its group; undefined for send, recv and batch. */
  readonly sequence: number | undefined;
  /** What this rank sends for it, as the backends' ledger counts it: by a bandwidth-optimal algorithm. */
  readonly bytes: number;
  /** The group's name, as errors print it. */
  readonly group: string;
  /** This rank in the group. */
  readonly rank: number;
}

/** The same call is over, well or not. */
export interface CollectiveEnd extends CollectiveStart {
  /** From start to end on the machine's clock, whatever clock the backend runs on. */
  readonly durationMs: number;
  /** What the call rejects with, if it failed. */
  readonly error?: Error | undefined;
}

/** A call failed because ranks of the group are gone. */
export interface PeerLost {
  readonly group: string;
  readonly rank: number;
  /** The ranks that are gone, in the group. */
  readonly ranks: readonly number[];
  readonly error: Error;
}

/** A failure ended the group: its later calls reject with ClosedError. */
export interface Poisoned {
  readonly group: string;
  readonly rank: number;
  /** The first failure that this rank saw. */
  readonly error: Error;
}

/** `close()` was called on this rank. */
export interface Closed {
  readonly group: string;
  readonly rank: number;
}

/** The events of a ProcessGroup (its own) and of a World (those of all groups made in it). */
export interface GroupEvents {
  collectiveStart: (event: CollectiveStart) => void;
  collectiveEnd: (event: CollectiveEnd) => void;
  peerLost: (event: PeerLost) => void;
  poisoned: (event: Poisoned) => void;
  closed: (event: Closed) => void;
}

export const GROUP_EVENTS = ['collectiveStart', 'collectiveEnd', 'peerLost', 'poisoned', 'closed'] as const;
