import { z } from 'zod';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { linear } from '../tensor/functional';
import type { Tensor } from '../tensor/tensor';
import { checkSize, type GeneratorOptions, uniformParameter } from './initial-values';
import { Module } from './module';
import type { Parameter } from './parameter';

export interface LinearOptions extends GeneratorOptions {
  /** Add a trained bias; default true. */
  readonly bias?: boolean | undefined;
}

const schema = z.strictObject({ bias: z.boolean().default(true), generator: z.instanceof(Generator).optional() });

/**
 * y = x W^T + b, along the last dimension.
 *
 * Shapes: x [..., in], weight [out, in], bias [out], y [..., out]. First values as in PyTorch (He et al., 2015, with
 * a = sqrt(5)): weight and bias uniform within 1 / sqrt(in).
 */
export class Linear extends Module {
  readonly inFeatures: number;
  readonly outFeatures: number;
  weight: Parameter;
  bias: Parameter | undefined;

  /** @throws InvalidArgumentError for sizes that are no whole numbers above 0, or an unknown option */
  constructor(inFeatures: number, outFeatures: number, options?: LinearOptions) {
    super();
    const { bias, generator } = parseOptions(schema, options, 'new Linear');
    this.inFeatures = checkSize(inFeatures, 'new Linear: inFeatures');
    this.outFeatures = checkSize(outFeatures, 'new Linear: outFeatures');
    const bound = 1 / Math.sqrt(inFeatures);
    this.weight = uniformParameter([outFeatures, inFeatures], bound, generator);
    this.bias = bias ? uniformParameter([outFeatures], bound, generator) : undefined;
  }

  async forward(x: Tensor): Promise<Tensor> {
    return linear(x, this.weight, this.bias);
  }
}
