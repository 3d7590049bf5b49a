import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { dropout } from '../tensor/functional';
import type { Tensor } from '../tensor/tensor';
import type { GeneratorOptions } from './initial-values';
import { Module } from './module';

const schema = z.strictObject({ generator: z.instanceof(Generator).optional() });

/**
 * In training, sets each element to 0 with probability `p` and divides the others by 1 - p; in evaluation it changes
 * nothing. Ranks that draw from equal seeds drop the same elements: give each its own.
 */
export class Dropout extends Module {
  readonly p: number;
  readonly #generator: Generator | undefined;

  /** @throws InvalidArgumentError unless 0 <= p <= 1, or for an unknown option */
  constructor(p = 0.5, options?: GeneratorOptions) {
    super();
    if (typeof p !== 'number' || !(p >= 0 && p <= 1)) {
      throw new InvalidArgumentError(`new Dropout: expected a probability from 0 to 1, got ${String(p)}.`);
    }
    this.p = p;
    this.#generator = parseOptions(schema, options, 'new Dropout').generator;
  }

  async forward(x: Tensor): Promise<Tensor> {
    return this.isTraining ? dropout(x, this.p, { generator: this.#generator }) : x;
  }
}
