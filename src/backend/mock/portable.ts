/**
 * [Note: portable mode]
 * With `portable: true` the mock keeps to what NCCL can do, so that a program which passes also runs there. NCCL puts
 * a rank's calls, of all its groups, into one stream and runs them one by one. So:
 *
 * 1. A call moves data only when it is the oldest in flight on its own rank and on every rank that takes part. The
 *    parts of a batch are one call. Programs that would hang in the stream then deadlock here, and are found at once:
 *    sends and receives that cross each other outside a batch, groups used in another order on another rank, a
 *    collective overtaken by a message.
 * 2. Between two ranks of a group the k-th send meets the k-th receive, whatever their tags; different tags are then a
 *    mismatch, since NCCL, which has no tags, would mix up the data.
 *
 * Correct programs run as before, only later: a call that is ready waits for older ones, all of which can complete.
 */
import type { MockCall } from './mock-call';
import type { MockRank } from './mock-rank';

export class StreamOrder {
  /** False: everything below lets every call pass. */
  readonly isKept: boolean;
  /** Ranks whose oldest call is done, so that the next may be ready. */
  readonly #moved: MockRank[] = [];
  #isMoving = false;

  constructor(isKept: boolean) {
    this.isKept = isKept;
  }

  /** True if the call may move data as far as its own rank is concerned. */
  isNext(call: MockCall): boolean {
    return !this.isKept || call.owner.firstCall === call;
  }

  /** Calls in flight that have to complete before any of these, which take part in the same transfer. */
  callsAhead(companions: readonly MockCall[]): readonly MockCall[] {
    return this.isKept ? companions.flatMap(olderCalls) : [];
  }

  /** A call is done: let those behind it go on. In a loop, since a long line would overflow the stack. */
  advance(settled: MockCall): void {
    if (!this.isKept) return;
    this.#moved.push(settled.owner);
    if (this.#isMoving) return;
    this.#isMoving = true;
    for (let rank = this.#moved.shift(); rank !== undefined; rank = this.#moved.shift()) {
      const next = rank.firstCall;
      if (next !== undefined && !next.group.hasFailed) next.progress();
    }
    this.#isMoving = false;
  }
}

function olderCalls(call: MockCall): readonly MockCall[] {
  const line = [...call.owner.calls];
  return line.slice(0, Math.max(0, line.indexOf(call)));
}
