import type { Clock, Timer } from '../../core/clock';
import { runDetached } from '../../core/context';
import { CollectiveTimeoutError } from '../../core/errors';
import type { MockCall } from './mock-call';

/** What has a deadline: a call, or a wait in the store. */
export interface Timed {
  readonly dueMs: number;
  readonly isAwaited: boolean;
}

/** One timer for all calls of a world, set only when the event loop has nothing to do but wait for them. */
export class Deadlines {
  readonly #clock: Clock;
  #timer: Timer | undefined;
  #armedDueMs = Infinity;
  #isKeepingAlive = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Watch these calls, and only these. */
  watch(calls: readonly Timed[], onExpiry: () => void): void {
    if (calls.length === 0) return this.cancel();
    const dueMs = Math.min(...calls.map((call) => call.dueMs));
    const keepAlive = calls.some((call) => call.isAwaited);
    if (this.#timer !== undefined && dueMs === this.#armedDueMs && keepAlive === this.#isKeepingAlive) return;
    this.cancel();
    this.#armedDueMs = dueMs;
    this.#isKeepingAlive = keepAlive;
    const delayMs = Math.max(0, dueMs - this.#clock.now());
    const expire = (): void => {
      this.cancel();
      onExpiry();
    };
    this.#timer = runDetached(() => this.#clock.schedule(expire, delayMs, keepAlive));
  }

  cancel(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#armedDueMs = Infinity;
  }

  /** End the group of every call whose time is over. */
  expire(calls: readonly MockCall[]): void {
    const nowMs = this.#clock.now();
    for (const call of calls) if (!call.isComplete && call.dueMs <= nowMs) failByTimeout(call);
  }
}

function failByTimeout(late: MockCall): void {
  const { group, timeoutMs } = late;
  const missing = late.missingRanks();
  const waited =
    missing.length === 0
      ? `It was ready, but in portable mode it waits for ${late.callsAhead()[0]?.title ?? 'an earlier call'}.`
      : `${group.ranks.namesAtStart(missing)} did not arrive.`;
  const advice =
    late.owner.state.kind === 'bare'
      ? 'If a rank is only slow, pass a larger timeoutMs; inside runWorld or backend.run(fn), ranks that wait in vain are found at once.'
      : 'If a rank is only slow, pass a larger timeoutMs.';
  const message = `${late.title}, on ${group.ranks.name(late.rank)}: not finished within ${timeoutMs} ms. ${waited} ${advice} The group cannot be used any more; build another.`;
  group.fail((rank, call) => {
    const { op = late.op, sequence } = call ?? late;
    return new CollectiveTimeoutError(message, { rank, group: group.id, op, sequence, ...group.ranks.blame(missing) });
  });
}
