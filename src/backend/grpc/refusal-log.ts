/** What is said about connections that are turned away: one line per kind and place, however often they come. */
import type { Logger } from '../../core/logger';

/** After so many lines strangers have been heard enough. */
const MAX_LINES = 100;

export class RefusalLog {
  readonly #logger: Logger;
  /** Who refuses, as `rank 2`. */
  readonly #who: string;
  readonly #seen = new Set<string>();

  constructor(logger: Logger, who: string) {
    this.#logger = logger;
    this.#who = who;
  }

  /** @param from address without port, which changes with every connection */
  note(kind: string, from: string, message: string): void {
    const key = `${kind} ${from}`;
    if (this.#seen.has(key) || this.#seen.size > MAX_LINES) return;
    this.#seen.add(key);
    const rest = this.#seen.size > MAX_LINES ? ' Refusals after this one are not logged.' : '';
    this.#logger.warn(`${this.#who} refused a connection from ${from}: ${message}${rest}`);
  }
}
