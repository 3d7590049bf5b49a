import { systemClock, type Timer } from '../core/clock';

/** Short, so that few blocks fit between two ticks unseen. */
const LONGEST_TICK_MS = 10;
/** A tick that comes later than this part of its length: the loop was blocked. */
const LATE_PART = 0.5;

export interface WatchdogOptions {
  readonly stallMs: number;
  /** A number that changes whenever anything has happened. */
  readonly activity: () => number;
  readonly onStall: () => void;
}

/**
 * Calls `onStall` once, after `stallMs` in which nothing happened although the event loop was free.
 *
 * Time is counted in ticks of a timer, and only in those that come on time: a late one says that the loop was blocked
 * by a computation, and the ranks get at least one whole tick after it to go on.
 */
export class Watchdog {
  readonly #options: WatchdogOptions;
  readonly #tickMs: number;
  #lastActivity: number;
  #idleMs = 0;
  #dueMs = 0;
  #timer: Timer;

  constructor(options: WatchdogOptions) {
    this.#options = options;
    this.#tickMs = Math.min(LONGEST_TICK_MS, options.stallMs);
    this.#lastActivity = options.activity();
    this.#timer = this.#nextTick();
  }

  stop(): void {
    this.#timer.cancel();
  }

  #nextTick(): Timer {
    this.#dueMs = systemClock.now() + this.#tickMs;
    return systemClock.schedule(() => this.#tick(), this.#tickMs, true);
  }

  #tick(): void {
    const activity = this.#options.activity();
    const isOnTime = systemClock.now() - this.#dueMs <= LATE_PART * this.#tickMs;
    if (activity !== this.#lastActivity) this.#idleMs = 0;
    else if (isOnTime) this.#idleMs += this.#tickMs;
    this.#lastActivity = activity;
    if (this.#idleMs < this.#options.stallMs) this.#timer = this.#nextTick();
    else this.#options.onStall();
  }
}
