/** In which order, and when, ranks learn that they can go on. */
import { nextTurn } from '../../core/clock';
import { runDetached } from '../../core/context';
import { Generator } from '../../core/generator';

export interface Schedule {
  /** True if `deliver` runs its task before it returns. */
  readonly isImmediate: boolean;
  /** True if no task waits. */
  readonly isIdle: boolean;
  deliver(task: () => void): void;
}

/** At once, in the order of the calls. */
export class FifoSchedule implements Schedule {
  readonly isImmediate = true;
  readonly isIdle = true;

  deliver(task: () => void): void {
    task();
  }
}

/** One task in this many turns is followed by a second in the same turn, so that two ranks' steps interleave finely. */
const SECOND_TASK_ODDS = 3;
/** One turn in this many does nothing, so that work outside the world may overtake. */
const IDLE_TURN_ODDS = 4;

/** In an order, and at turns of the event loop, that the seed alone decides. */
export class RandomSchedule implements Schedule {
  readonly isImmediate = false;
  readonly #generator: Generator;
  readonly #tasks: (() => void)[] = [];
  #isTurnAwaited = false;

  constructor(seed: number) {
    this.#generator = new Generator(seed);
  }

  get isIdle(): boolean {
    return this.#tasks.length === 0;
  }

  deliver(task: () => void): void {
    this.#tasks.push(task);
    this.#awaitTurn();
  }

  #awaitTurn(): void {
    if (this.#isTurnAwaited) return;
    this.#isTurnAwaited = true;
    runDetached(() => nextTurn(() => this.#turn()));
  }

  #turn(): void {
    this.#isTurnAwaited = false;
    if (this.#generator.nextBelow(IDLE_TURN_ODDS) !== 0) {
      this.#runOne();
      if (this.#generator.nextBelow(SECOND_TASK_ODDS) === 0) this.#runOne();
    }
    if (this.#tasks.length > 0) this.#awaitTurn();
  }

  #runOne(): void {
    if (this.#tasks.length === 0) return;
    const index = this.#generator.nextBelow(this.#tasks.length);
    const [task] = this.#tasks.splice(index, 1);
    task?.();
  }
}
