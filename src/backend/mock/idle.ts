/** Watches for the moment when nothing in the world runs any more, and then decides what happens. */
import { nextTurn, systemClock, type Timer } from '../../core/clock';
import { runDetached } from '../../core/context';
import { breakDeadlock, stuckRanks, waitingRanks } from './deadlock';
import { Deadlines } from './deadlines';
import type { MockCall } from './mock-call';
import type { MockWorld } from './mock-world';
import { VirtualClock } from './virtual-clock';

/** How often a world that waits for the outside is looked at again: from the first to the last, doubling. */
const FIRST_POLL_MS = 1;
const LAST_POLL_MS = 50;
/** [Note: second look] */
const SECOND_LOOK_MS = 50;

export class IdleWatch {
  readonly #world: MockWorld;
  readonly #deadlines: Deadlines;
  readonly #verdicts: (() => void)[] = [];
  #isTurnAwaited = false;
  #poll: Timer | undefined;
  #pollMs = FIRST_POLL_MS;
  /** A deadlock was seen, and nothing has happened since. */
  #isSuspected = false;

  constructor(world: MockWorld) {
    this.#world = world;
    this.#deadlines = new Deadlines(world.clock);
  }

  /** Something happened: look again when the microtasks have run. */
  noteChange(): void {
    this.#isSuspected = false;
    if (this.#isTurnAwaited) return;
    this.#pollMs = FIRST_POLL_MS;
    this.#awaitTurn();
  }

  /**
   * Call `verdict` when the microtasks have run and the schedule holds no rank back, so that it hears of all ranks that are
   * on their way.
   */
  decideLater(verdict: () => void): void {
    this.#verdicts.push(verdict);
    this.noteChange();
  }

  #awaitTurn(): void {
    this.#isTurnAwaited = true;
    this.#poll?.cancel();
    this.#poll = undefined;
    runDetached(() => nextTurn(() => this.#turn()));
  }

  #turn(): void {
    this.#isTurnAwaited = false;
    const { schedule } = this.#world;
    if (schedule.isIdle) for (const verdict of this.#verdicts.splice(0)) verdict();
    const calls = this.#callsInFlight();
    const waits = this.#world.ranks.flatMap((rank) => [...rank.storeWaits]);
    this.#deadlines.watch([...calls, ...waits], () => this.#expire());
    if (!schedule.isIdle) return this.#lookOnceScheduled();
    const stuck = stuckRanks(this.#world);
    if (stuck.length === 0) {
      this.#isSuspected = false;
      this.#waitForOutside();
    } else if (this.#isSuspected) {
      breakDeadlock(this.#world, stuck);
    } else {
      this.#isSuspected = true;
      this.#lookAgain(SECOND_LOOK_MS);
    }
  }

  /** A verdict waits for ranks that the schedule has yet to let go on; whatever they do need not be a change here. */
  #lookOnceScheduled(): void {
    if (this.#verdicts.length > 0) this.#awaitTurn();
  }

  /** Ranks wait for a timer, for I/O, or (on the virtual clock) for time to pass. */
  #waitForOutside(): void {
    const { clock, ranks } = this.#world;
    const isTimeWanted = clock instanceof VirtualClock && clock.isWaitedFor;
    const isAnyLive = ranks.some((rank) => this.#world.hasLiveResources(rank));
    if (isTimeWanted && !isAnyLive) {
      clock.advance();
      this.noteChange();
    } else if (isAnyLive && (isTimeWanted || waitingRanks(this.#world).length > 0)) {
      this.#pollLater();
    }
  }

  #pollLater(): void {
    const delayMs = this.#pollMs;
    this.#pollMs = Math.min(2 * delayMs, LAST_POLL_MS);
    this.#lookAgain(delayMs);
  }

  #lookAgain(delayMs: number): void {
    this.#poll = runDetached(() => systemClock.schedule(() => this.#awaitTurn(), delayMs, true));
  }

  #expire(): void {
    this.#deadlines.expire(this.#callsInFlight());
    this.#world.store.expire();
    this.noteChange();
  }

  #callsInFlight(): MockCall[] {
    return this.#world.ranks.flatMap((rank) => [...rank.calls]);
  }
}
