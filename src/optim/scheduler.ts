import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';

/** What a scheduler needs of an optimizer: groups whose `lr` it may set. */
export interface ScheduledOptimizer {
  readonly paramGroups: readonly { lr: number }[];
}

/** What a scheduler knows; JSON-safe. */
export interface SchedulerState {
  /** Calls of `step()` so far. */
  readonly step: number;
  /** Each group's learning rate when the scheduler was made. */
  readonly baseLrs: readonly number[];
}

const stateSchema = z.strictObject({ step: z.int().min(0), baseLrs: z.array(z.number()) });

/**
 * Sets the learning rates of an optimizer's groups by a formula of the step number t = 0, 1, 2, ...
 *
 * The rates of step 0 are set when it is made; call `step()` after every `optimizer.step()`. Rates are computed anew from
 * those that the groups had then, so what a program writes to `group.lr` lasts until the next `step()`.
 */
export abstract class Scheduler {
  readonly #optimizer: ScheduledOptimizer;
  readonly #lrAt: (baseLr: number, step: number) => number;
  #baseLrs: readonly number[];
  #step = 0;

  /** @param lrAt the learning rate of a group with rate `baseLr` for optimizer step number `step` */
  protected constructor(optimizer: ScheduledOptimizer, lrAt: (baseLr: number, step: number) => number) {
    this.#optimizer = optimizer;
    this.#lrAt = lrAt;
    this.#baseLrs = optimizer.paramGroups.map((group) => group.lr);
    this.#apply();
  }

  /** The learning rates in use, one a group. */
  get lrs(): number[] {
    return this.#optimizer.paramGroups.map((group) => group.lr);
  }

  /** Go on to the next step and set its learning rates. */
  step(): void {
    this.#step++;
    this.#apply();
  }

  stateDict(): SchedulerState {
    return { step: this.#step, baseLrs: [...this.#baseLrs] };
  }

  /**
   * Go to a saved step and set its learning rates.
   * @throws InvalidArgumentError, with nothing changed, if the state is of another number of groups
   */
  loadStateDict(state: SchedulerState): void {
    const { step, baseLrs } = parseOptions(stateSchema, state, `${this.constructor.name}.loadStateDict`);
    if (baseLrs.length !== this.#optimizer.paramGroups.length) {
      throw new InvalidArgumentError(
        `${this.constructor.name}.loadStateDict: the state has learning rates of ${baseLrs.length} groups, but the ` +
          `optimizer has ${this.#optimizer.paramGroups.length}. Load it beside an optimizer with the same groups.`,
      );
    }
    this.#step = step;
    this.#baseLrs = baseLrs;
    this.#apply();
  }

  #apply(): void {
    this.#optimizer.paramGroups.forEach((group, index) => {
      const baseLr = this.#baseLrs[index];
      // a group added later keeps its own rate
      if (baseLr !== undefined) group.lr = this.#lrAt(baseLr, this.#step);
    });
  }
}
