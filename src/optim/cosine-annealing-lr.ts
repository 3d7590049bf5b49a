import { z } from 'zod';
import { parseOptions } from '../core/options';
import { Scheduler, type ScheduledOptimizer } from './scheduler';

export interface CosineAnnealingLROptions {
  /** Steps from the base rate down to `etaMin`. */
  readonly tMax: number;
  /** The smallest rate; default 0. */
  readonly etaMin?: number | undefined;
}

const schema = z.strictObject({ tMax: z.int().min(1), etaMin: z.number().min(0).default(0) });

/** lr = etaMin + (base - etaMin) * (1 + cos(pi * t / tMax)) / 2; after tMax it rises again, with period 2 tMax. */
export class CosineAnnealingLR extends Scheduler {
  /** @throws InvalidArgumentError for an option that does not parse */
  constructor(optimizer: ScheduledOptimizer, options: CosineAnnealingLROptions) {
    const { tMax, etaMin } = parseOptions(schema, options, 'new CosineAnnealingLR');
    super(optimizer, (baseLr, step) => etaMin + ((baseLr - etaMin) * (1 + Math.cos((Math.PI * step) / tMax))) / 2);
  }
}
