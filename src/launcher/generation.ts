import { systemClock } from '../core/clock';
import { RankProcess, type RankSink, type RankStart } from './rank-process';
import { hasFailed, isSurelyFirst, type RankExit } from './rank-report';

/**
 * After a failure that may be the consequence of another one: how long the rank that is to blame has to end by itself,
 * before all are stopped.
 */
const SETTLE_MS = 500;

/** All ranks of this machine, started once. If one fails the others are stopped. */
export class Generation {
  readonly #ranks: readonly RankProcess[];
  /** In the order of their ends. */
  readonly #exits: RankExit[] = [];
  readonly #graceMs: number;
  readonly #timers: { cancel(): void }[] = [];
  #isStopping = false;

  constructor(starts: readonly RankStart[], sinkOf: (rank: number) => RankSink, graceMs: number) {
    this.#graceMs = graceMs;
    const sinks = starts.map(({ rank }) => sinkOf(rank)); // may fail, so before the first process
    this.#ranks = starts.map((start, index) => new RankProcess(start, sinks[index] as RankSink));
  }

  /** Settles once no rank is left, with their ends in order of time. */
  async ended(): Promise<readonly RankExit[]> {
    try {
      await Promise.all(
        this.#ranks.map(async (rank) => {
          this.#onExit(await rank.ended);
        }),
      );
    } finally {
      this.#timers.forEach((timer) => timer.cancel());
    }
    return this.#exits;
  }

  /** Ask all ranks to end; those that are left after the grace period are killed. Asked again: killed now. */
  stop(signal: NodeJS.Signals): void {
    const kill = (): void => this.#ranks.forEach((rank) => rank.stop('SIGKILL'));
    if (this.#isStopping) {
      kill();
      return;
    }
    this.#isStopping = true;
    this.#ranks.forEach((rank) => rank.stop(signal));
    this.#timers.push(systemClock.schedule(kill, this.#graceMs, true));
  }

  #onExit(exit: RankExit): void {
    this.#exits.push(exit);
    if (this.#isStopping || !hasFailed(exit)) return;
    const stop = (): void => {
      if (!this.#isStopping) this.stop('SIGTERM');
    };
    if (isSurelyFirst(exit)) stop();
    else this.#timers.push(systemClock.schedule(stop, SETTLE_MS, true));
  }
}
