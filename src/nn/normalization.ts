import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { layerNorm, rmsNorm } from '../tensor/functional';
import type { Shape } from '../tensor/shape';
import type { Tensor } from '../tensor/tensor';
import { checkSize, constantParameter } from './initial-values';
import { Module } from './module';
import type { Parameter } from './parameter';

export interface NormOptions {
  /** Added to the variance (LayerNorm, default 1e-5) or the mean square (RMSNorm, default 1e-6) before the root. */
  readonly eps?: number | undefined;
}

const layerNormSchema = z.strictObject({ eps: z.number().min(0).default(1e-5) });
const rmsNormSchema = z.strictObject({ eps: z.number().min(0).default(1e-6) });

/**
 * (x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, with the biased variance (Ba et al., 2016).
 *
 * Shapes: x [..., *dims], weight (first 1) and bias (first 0) [*dims].
 */
export class LayerNorm extends Module {
  readonly normalizedShape: Shape;
  readonly eps: number;
  weight: Parameter;
  bias: Parameter;

  /** @param dims the size of the last dimension, or the sizes of the last dimensions */
  constructor(dims: number | readonly number[], options?: NormOptions) {
    super();
    this.normalizedShape = checkDims(dims, 'new LayerNorm');
    this.eps = parseOptions(layerNormSchema, options, 'new LayerNorm').eps;
    this.weight = constantParameter(this.normalizedShape, 1);
    this.bias = constantParameter(this.normalizedShape, 0);
  }

  async forward(x: Tensor): Promise<Tensor> {
    return layerNorm(x, this.normalizedShape, { weight: this.weight, bias: this.bias, eps: this.eps });
  }
}

/**
 * x / sqrt(mean(x^2) + eps) * weight over the last dimensions (Zhang and Sennrich, 2019).
 *
 * Shapes: x [..., *dims], weight (first 1) [*dims].
 */
export class RMSNorm extends Module {
  readonly normalizedShape: Shape;
  readonly eps: number;
  weight: Parameter;

  /** @param dims the size of the last dimension, or the sizes of the last dimensions */
  constructor(dims: number | readonly number[], options?: NormOptions) {
    super();
    this.normalizedShape = checkDims(dims, 'new RMSNorm');
    this.eps = parseOptions(rmsNormSchema, options, 'new RMSNorm').eps;
    this.weight = constantParameter(this.normalizedShape, 1);
  }

  async forward(x: Tensor): Promise<Tensor> {
    return rmsNorm(x, this.normalizedShape, { weight: this.weight, eps: this.eps });
  }
}

function checkDims(dims: number | readonly number[], what: string): Shape {
  const list = Array.isArray(dims) ? (dims as readonly number[]) : [dims];
  if (list.length === 0) throw new InvalidArgumentError(`${what}: expected at least one size, got [].`);
  return Object.freeze(list.map((size) => checkSize(size, what)));
}
