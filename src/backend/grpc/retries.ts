import { systemClock } from '../../core/clock';
import type { Deadline } from '../../core/deadline';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;
/** After so long a line says what is waited for. */
const SILENT_MS = 10_000;

/** The pauses between tries at something that may not be there yet: ever longer, until a deadline. */
export class Retries {
  readonly #deadline: Deadline;
  readonly #onLongWait: (reason: string) => void;
  #pauseMs = FIRST_PAUSE_MS;
  #hasSpoken = false;

  /** @param onLongWait is called once, after 10 s, with what failed last */
  constructor(deadline: Deadline, onLongWait: (reason: string) => void) {
    this.#deadline = deadline;
    this.#onLongWait = onLongWait;
  }

  /** A try has failed: pause before the next. False, at once, if there is no time for another. */
  async again(reason: string): Promise<boolean> {
    const { timeoutMs, remainingMs } = this.#deadline;
    const pauseMs = this.#pauseMs;
    if (remainingMs <= pauseMs) return false;
    if (!this.#hasSpoken && timeoutMs - remainingMs > SILENT_MS) {
      this.#hasSpoken = true;
      this.#onLongWait(reason);
    }
    this.#pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    await new Promise<void>((resolve) => systemClock.schedule(resolve, pauseMs, true));
    return true;
  }
}
