import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { Scheduler, type ScheduledOptimizer } from './scheduler';

export interface CosineWithWarmupOptions {
  /** Steps of the linear rise from 0; default 0. */
  readonly warmupSteps?: number | undefined;
  /** Steps of the whole schedule, warm-up included. */
  readonly totalSteps: number;
  /** The rate at the end and from then on, as a part of the base rate; default 0. */
  readonly minRatio?: number | undefined;
}

const schema = z.strictObject({
  warmupSteps: z.int().min(0).default(0),
  totalSteps: z.int().min(1),
  minRatio: z.number().min(0).max(1).default(0),
});

/**
 * A linear warm-up from 0, then half a cosine down to `minRatio` of the base rate.
 *
 * t < warmupSteps: lr = base * t / warmupSteps, so step 0 changes nothing but the optimizer's state. After that
 * lr = base * (minRatio + (1 - minRatio) * (1 + cos(pi * progress)) / 2), where progress goes from 0 at the end of the
 * warm-up to 1 at totalSteps and stays there.
 */
export class CosineWithWarmup extends Scheduler {
  /** @throws InvalidArgumentError for an option that does not parse, or a warm-up longer than the schedule */
  constructor(optimizer: ScheduledOptimizer, options: CosineWithWarmupOptions) {
    const { warmupSteps, totalSteps, minRatio } = parseOptions(schema, options, 'new CosineWithWarmup');
    if (warmupSteps > totalSteps) {
      throw new InvalidArgumentError(
        `new CosineWithWarmup: warmupSteps (${warmupSteps}) is above totalSteps (${totalSteps}), which counts the warm-up too.`,
      );
    }
    super(optimizer, (baseLr, step) => {
      if (step < warmupSteps) return (baseLr * step) / warmupSteps;
      const progress = step >= totalSteps ? 1 : (step - warmupSteps) / (totalSteps - warmupSteps);
      return baseLr * (minRatio + ((1 - minRatio) * (1 + Math.cos(Math.PI * progress))) / 2);
    });
  }
}
