/** Operators that are functions: of several tensors, or with parameters of a layer. */
import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import type { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { defaultGenerator, noteDraws } from '../core/random';
import { where as chooseValues } from './operators/comparison';
import { conv2d as convolve } from './operators/convolution';
import { crossEntropy, type LossReduction } from './operators/cross-entropy';
import { dropout as dropValues } from './operators/dropout';
import { linear as applyLinear } from './operators/linear';
import { layerNorm as normalizeLayer, rmsNorm as normalizeRms } from './operators/normalization';
import { concat as joinValues } from './operators/rearrange';
import { take } from './operators/take';
import { formatShape, isSameShape, type Shape } from './shape';
import { applyOperator, type Tensor } from './tensor';

/** The tensors one after the other along `dim`. All other sizes agree. */
export function concat(tensors: readonly Tensor[], dim = 0): Tensor {
  return applyOperator('concat', tensors, (...values) => joinValues(values, dim));
}

/** The tensors, all of one shape, side by side along a new dimension `dim`. */
export function stack(tensors: readonly Tensor[], dim = 0): Tensor {
  const first = tensors[0];
  const odd = tensors.find((tensor) => first !== undefined && !isSameShape(tensor.shape, first.shape));
  if (first !== undefined && odd !== undefined) {
    throw new InvalidArgumentError(
      `stack: shapes ${formatShape(first.shape)} and ${formatShape(odd.shape)} differ; all have to be the same.`,
    );
  }
  return concat(
    tensors.map((tensor) => tensor.unsqueeze(dim)),
    dim,
  );
}

/** `a` where `condition` (uint8, as comparisons give) is not 0, else `b`; all broadcast. */
export function where(condition: Tensor, a: Tensor | number, b: Tensor | number): Tensor {
  const left = typeof a === 'number' ? undefined : a;
  const right = typeof b === 'number' ? undefined : b;
  return applyOperator('where', [condition, left, right], (choice, x, y) =>
    chooseValues(choice, x ?? (a as number), y ?? (b as number)),
  );
}

/** The slices of `x` at `indices` (int32 or int64) along `dim`, which the dimensions of `indices` replace. */
export function indexSelect(x: Tensor, dim: number, indices: Tensor): Tensor {
  return applyOperator('indexSelect', [x, indices], (values, picked) => take('indexSelect', values, dim, picked));
}

/** Rows of `weight` [numEmbeddings, dim] at `ids` (int32 or int64, any shape) -> [...ids.shape, dim]. */
export function embedding(ids: Tensor, weight: Tensor): Tensor {
  return applyOperator('embedding', [weight, ids], (rows, picked) => take('embedding', rows, 0, picked));
}

/** x W^T + b: x [..., in], weight [out, in], bias [out] -> [..., out]. */
export function linear(x: Tensor, weight: Tensor, bias?: Tensor): Tensor {
  return applyOperator('linear', [x, weight, bias], applyLinear);
}

export interface NormOptions {
  readonly weight?: Tensor | undefined;
  readonly bias?: Tensor | undefined;
  /** Added to the variance (mean square for rmsNorm). Default 1e-5. */
  readonly eps?: number | undefined;
}

/** (x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, which are `normalizedShape`. */
export function layerNorm(x: Tensor, normalizedShape: Shape, options: NormOptions = {}): Tensor {
  const { weight, bias, eps = 1e-5 } = options;
  return applyOperator('layerNorm', [x, weight, bias], (values, w, b) =>
    normalizeLayer(values, w, b, { normalizedShape, eps }),
  );
}

/** x / sqrt(mean(x^2) + eps) * weight over the last dimensions, which are `normalizedShape`. */
export function rmsNorm(x: Tensor, normalizedShape: Shape, options: Omit<NormOptions, 'bias'> = {}): Tensor {
  const { weight, eps = 1e-5 } = options;
  return applyOperator('rmsNorm', [x, weight], (values, w) => normalizeRms(values, w, { normalizedShape, eps }));
}

export interface Conv2dOptions {
  /** Steps of the kernel, [rows, columns] or one number for both. Default 1. */
  readonly stride?: number | readonly [number, number] | undefined;
  /** Zeros put around the image, [rows, columns] or one number for both. Default 0. */
  readonly padding?: number | readonly [number, number] | undefined;
}

const pairOf = (least: number): z.ZodType<number | readonly [number, number]> =>
  z.union([z.int().min(least), z.tuple([z.int().min(least), z.int().min(least)])]);
const conv2dSchema = z.strictObject({ stride: pairOf(1).optional(), padding: pairOf(0).optional() });

/** Two-dimensional convolution: x [n, in, h, w], weight [out, in, kh, kw], bias [out] -> [n, out, h', w']. */
export function conv2d(x: Tensor, weight: Tensor, bias?: Tensor, options?: Conv2dOptions): Tensor {
  const { stride = 1, padding = 0 } = parseOptions(conv2dSchema, options, 'conv2d');
  const operands = { stride: asPair(stride), padding: asPair(padding) };
  return applyOperator('conv2d', [x, weight, bias], (values, w, b) => convolve(values, w, b, operands));
}

function asPair(value: number | readonly [number, number]): readonly [number, number] {
  return typeof value === 'number' ? [value, value] : value;
}

export interface DropoutOptions {
  /** Default: the generator of this context. */
  readonly generator?: Generator | undefined;
}

/** Each element 0 with `probability`, else divided by 1 - probability. */
export function dropout(x: Tensor, probability: number, options: DropoutOptions = {}): Tensor {
  if (!(probability >= 0 && probability <= 1)) {
    throw new InvalidArgumentError(`dropout: expected a probability from 0 to 1, got ${probability}.`);
  }
  if (probability === 0) return x;
  const generator = options.generator ?? defaultGenerator();
  noteDraws(generator);
  return applyOperator('dropout', [x], (values) => dropValues(values, probability, generator));
}

export interface CrossEntropyOptions {
  /** Default 'mean', over the targets that are not ignored. */
  readonly reduction?: LossReduction | undefined;
  /** Targets of this value count for nothing. Default -100. */
  readonly ignoreIndex?: number | undefined;
  /** Share of the target that is spread evenly over all classes, 0 to 1. Default 0. */
  readonly labelSmoothing?: number | undefined;
}

const crossEntropySchema = z.strictObject({
  reduction: z.enum(['mean', 'sum', 'none']).optional(),
  ignoreIndex: z.int().optional(),
  labelSmoothing: z.number().min(0).max(1).optional(),
});

/**
 * Cross entropy of logits [n, classes] (or [classes], or [n, classes, d1, ...]) and class indices [n], int32 or int64.
 * The mean over no target is NaN.
 */
export function crossEntropyLoss(logits: Tensor, target: Tensor, options?: CrossEntropyOptions): Tensor {
  const {
    reduction = 'mean',
    ignoreIndex = -100,
    labelSmoothing = 0,
  } = parseOptions(crossEntropySchema, options, 'crossEntropy');
  const operands = { reduction, ignoreIndex, labelSmoothing };
  return applyOperator('crossEntropy', [logits, target], (x, indices) => crossEntropy(x, indices, operands));
}
