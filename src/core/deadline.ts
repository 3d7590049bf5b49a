import { systemClock, type Clock } from './clock';
import { InvalidArgumentError } from './errors';

/** How long a call may wait when neither the group nor the call says otherwise. */
export const DEFAULT_TIMEOUT_MS = 10 * 60 * 1000;

/** A moment taken once, at the top of a call, and handed down; every wait below asks what remains of it. */
export class Deadline {
  readonly timeoutMs: number;
  readonly #dueMs: number;
  readonly #clock: Clock;

  constructor(timeoutMs: number, clock: Clock = systemClock) {
    this.timeoutMs = timeoutMs;
    this.#clock = clock;
    this.#dueMs = clock.now() + timeoutMs;
  }

  get remainingMs(): number {
    return Math.max(0, this.#dueMs - this.#clock.now());
  }

  get isPast(): boolean {
    return this.remainingMs <= 0;
  }
}

/**
 * A timeout as given by a caller, or `fallbackMs` where none was given.
 * @throws InvalidArgumentError unless it is a positive number (Infinity is refused: every wait has a deadline)
 */
export function checkTimeout(timeoutMs: number | undefined, fallbackMs: number): number {
  if (timeoutMs === undefined) return fallbackMs;
  if (Number.isFinite(timeoutMs) && timeoutMs > 0) return timeoutMs;
  throw new InvalidArgumentError(
    `timeoutMs: expected a finite number of milliseconds above 0, got ${String(timeoutMs)}. Every wait has a deadline; pass a large number for a long one.`,
  );
}
