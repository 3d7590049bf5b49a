/**
 * Time. The functions are taken from node:timers and node:perf_hooks when this file is loaded and kept, so that a
 * user's fake timers (Jest replaces the globals) cannot stall a deadline. No other file uses timers.
 */
import { performance as nodePerformance } from 'node:perf_hooks';
import {
  clearImmediate as nodeClearImmediate,
  clearTimeout as nodeClearTimeout,
  setImmediate as nodeSetImmediate,
  setTimeout as nodeSetTimeout,
} from 'node:timers';

const monotonicNow = nodePerformance.now.bind(nodePerformance);

/** A pending callback; `cancel()` is idempotent. */
export interface Timer {
  cancel(): void;
}

/** A source of time; the mock world has a virtual one. */
export interface Clock {
  /** Milliseconds from an arbitrary origin; never goes back. */
  now(): number;
  /** Call `callback` once, `delayMs` from now. A pending timer keeps the process alive only if `keepAlive`. */
  schedule(callback: () => void, delayMs: number, keepAlive?: boolean): Timer;
}

/** setTimeout fires at once for anything longer, so longer waits are made of several. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;

/** The machine's clock. */
export const systemClock: Clock = {
  now: monotonicNow,
  schedule(callback, delayMs, keepAlive = false) {
    const dueMs = monotonicNow() + delayMs;
    let handle: NodeJS.Timeout;
    const arm = (remainingMs: number): void => {
      handle = nodeSetTimeout(wake, Math.min(Math.ceil(remainingMs), LONGEST_TIMEOUT_MS));
      if (!keepAlive) handle.unref();
    };
    // Node counts from the start of the turn in which a timer was set, so one may fire a few milliseconds early
    const wake = (): void => {
      const remainingMs = dueMs - monotonicNow();
      if (remainingMs > 0) arm(remainingMs);
      else callback();
    };
    arm(delayMs);
    return { cancel: () => nodeClearTimeout(handle) };
  },
};

/** Call `callback` in the next turn of the event loop, after all microtasks have run. */
export function nextTurn(callback: () => void): Timer {
  const handle = nodeSetImmediate(callback);
  return { cancel: () => nodeClearImmediate(handle) };
}
