import { z } from 'zod';
import { parseOptions } from '../core/options';
import { Scheduler, type ScheduledOptimizer } from './scheduler';

export interface StepLROptions {
  /** Steps between two decays. */
  readonly stepSize: number;
  /** What the rate is multiplied by; default 0.1. */
  readonly gamma?: number | undefined;
}

const schema = z.strictObject({ stepSize: z.int().min(1), gamma: z.number().min(0).default(0.1) });

/** lr = base * gamma ^ floor(t / stepSize). */
export class StepLR extends Scheduler {
  /** @throws InvalidArgumentError for an option that does not parse */
  constructor(optimizer: ScheduledOptimizer, options: StepLROptions) {
    const { stepSize, gamma } = parseOptions(schema, options, 'new StepLR');
    super(optimizer, (baseLr, step) => baseLr * gamma ** Math.floor(step / stepSize));
  }
}
