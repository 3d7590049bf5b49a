import { systemClock, type Timer } from '../core/clock';

/** A stall is looked for this many times in `stallMs`. */
const TICKS_PER_STALL = 16;

export interface WatchdogOptions {
  readonly stallMs: number;
  /** A number that changes whenever anything has happened. */
  readonly activity: () => number;
  readonly onStall: () => void;
}

/**
 * Calls `onStall` once, after `stallMs` in which nothing happened although the event loop was free.
 *
 * Time is counted in ticks of a timer: while the loop is blocked by a computation there are none.
 */
export class Watchdog {
  readonly #options: WatchdogOptions;
  readonly #tickMs: number;
  #lastActivity: number;
  #idleTicks = 0;
  #timer: Timer;

  constructor(options: WatchdogOptions) {
    this.#options = options;
    this.#tickMs = options.stallMs / TICKS_PER_STALL;
    this.#lastActivity = options.activity();
    this.#timer = this.#nextTick();
  }

  stop(): void {
    this.#timer.cancel();
  }

  #nextTick(): Timer {
    return systemClock.schedule(() => this.#tick(), this.#tickMs, true);
  }

  #tick(): void {
    const activity = this.#options.activity();
    this.#idleTicks = activity === this.#lastActivity ? this.#idleTicks + 1 : 0;
    this.#lastActivity = activity;
    if (this.#idleTicks < TICKS_PER_STALL) this.#timer = this.#nextTick();
    else this.#options.onStall();
  }
}
