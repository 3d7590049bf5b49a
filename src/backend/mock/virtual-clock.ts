import type { Clock, Timer } from '../../core/clock';
import { mockRankKey, type MockRank } from './mock-rank';

interface VirtualTimer {
  readonly dueMs: number;
  readonly callback: () => void;
  /** The rank that sleeps on it, if it was set inside `run`. */
  readonly owner: MockRank | undefined;
  /** Somebody waits for it; otherwise it fires in passing, when time moves for another. */
  readonly isWanted: boolean;
}

/** Time that stands still while any rank can go on, and then jumps to the next timer. Starts at 0. */
export class VirtualClock implements Clock {
  #nowMs = 0;
  /** By due time; timers due together are in the order in which they were set. */
  readonly #timers: VirtualTimer[] = [];
  readonly #onChange: () => void;

  /** @param onChange called when a timer is set */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  /** True if somebody waits for time to pass. */
  get isWaitedFor(): boolean {
    return this.#timers.some((timer) => timer.isWanted);
  }

  now(): number {
    return this.#nowMs;
  }

  schedule(callback: () => void, delayMs: number, keepAlive = false): Timer {
    const owner = mockRankKey.get();
    const dueMs = this.#nowMs + Math.max(0, delayMs);
    const timer: VirtualTimer = { dueMs, callback, owner, isWanted: keepAlive };
    const after = this.#timers.findIndex((other) => other.dueMs > timer.dueMs);
    this.#timers.splice(after < 0 ? this.#timers.length : after, 0, timer);
    if (owner !== undefined) owner.numSleeps += 1;
    this.#onChange();
    return { cancel: () => this.#remove(timer) };
  }

  /** Jump to the next timer, and call it. */
  advance(): void {
    const [next] = this.#timers;
    if (next === undefined) return;
    this.#nowMs = next.dueMs;
    this.#remove(next);
    next.callback();
  }

  #remove(timer: VirtualTimer): void {
    const index = this.#timers.indexOf(timer);
    if (index < 0) return;
    this.#timers.splice(index, 1);
    if (timer.owner !== undefined) timer.owner.numSleeps -= 1;
  }
}
