import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { autocastInputs } from '../tensor/autocast-mode';
import { crossEntropyLoss, type CrossEntropyOptions } from '../tensor/functional';
import { formatShape, isSameShape } from '../tensor/shape';
import type { Tensor } from '../tensor/tensor';

export interface MseLossOptions {
  /** Default 'mean', over all elements. */
  readonly reduction?: 'mean' | 'sum' | 'none' | undefined;
}

const mseSchema = z.strictObject({ reduction: z.enum(['mean', 'sum', 'none']).default('mean') });

/**
 * How far the logits are from the right classes: -log softmax(logits)[target], averaged.
 *
 * Shapes: logits [n, classes] (or [classes], or [n, classes, d1, ...]), target the same without classes, int32 or int64;
 * the loss is a single number, or has the shape of target with reduction 'none'. Targets equal to `ignoreIndex` (-100)
 * count for nothing; the mean over no target is NaN. After torch.nn.functional.cross_entropy.
 * @throws InvalidArgumentError for shapes that do not fit, or a class that does not exist
 */
export function crossEntropy(logits: Tensor, target: Tensor, options?: CrossEntropyOptions): Tensor {
  return crossEntropyLoss(logits, target, options);
}

/**
 * The squared difference of two tensors of one shape, averaged over all elements ('mean'), summed ('sum') or as it is
 * ('none').
 * @throws InvalidArgumentError for shapes that differ: nothing is broadcast, since that is mostly a mistake here
 */
export function mseLoss(input: Tensor, target: Tensor, options?: MseLossOptions): Tensor {
  const { reduction } = parseOptions(mseSchema, options, 'mseLoss');
  if (!isSameShape(input.shape, target.shape)) {
    throw new InvalidArgumentError(
      `mseLoss: expected two tensors of one shape, got ${formatShape(input.shape)} and ${formatShape(target.shape)}.`,
    );
  }
  const [left, right] = autocastInputs('mseLoss', [input, target]);
  const difference = left.sub(right);
  const squares = difference.mul(difference);
  return reduction === 'none' ? squares : reduction === 'sum' ? squares.sum() : squares.mean();
}
