/**
 * How much of one group's collectives may wait in the memory of peers that have not made the calls yet.
 *
 * [Note: eager budget] The source of broadcasts, say, never waits for the others, so without a limit a slow rank would
 * have to hold all that it is behind. A sender counts the eager bytes of each peer and stops at the limit. They are
 * given back: by the Grant, for calls that need one; for smaller calls by an Ack that says how many bytes of finished
 * calls the receiver has taken, once they are worth a frame. A call that is stuck all the same gets the Grant of the
 * receiver's probe, and goes on beyond the limit.
 */

/** Bytes of one group that one peer may have to hold. */
export const EAGER_BYTES_PER_GROUP = 8 * 1024 * 1024;
/** The receiver reports this much at a time; far below the limit, so that a sender never waits for a report to fill. */
const REPORT_BYTES = 1024 * 1024;

export class EagerBudget {
  /** Sent, and perhaps not taken. */
  readonly #held: number[];
  /** Taken, and not reported. */
  readonly #taken: number[];

  constructor(size: number) {
    this.#held = new Array<number>(size).fill(0);
    this.#taken = new Array<number>(size).fill(0);
  }

  /** True, and counted, if the peer may get so many bytes more. */
  hold(peer: number, numBytes: number, isAsked: boolean): boolean {
    const held = this.#held[peer] as number;
    if (!isAsked && held > 0 && held + numBytes > EAGER_BYTES_PER_GROUP) return false;
    this.#held[peer] = held + numBytes;
    return true;
  }

  /** The peer has taken them, or asked for the rest of the call. */
  release(peer: number, numBytes: number): void {
    this.#held[peer] = Math.max(0, (this.#held[peer] as number) - numBytes);
  }

  /** This rank has taken bytes of a peer's; returns what to report now, or 0. */
  take(peer: number, numBytes: number): number {
    const taken = (this.#taken[peer] as number) + numBytes;
    this.#taken[peer] = taken < REPORT_BYTES ? taken : 0;
    return taken < REPORT_BYTES ? 0 : taken;
  }
}
