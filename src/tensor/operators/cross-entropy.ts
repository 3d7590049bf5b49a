import { InvalidArgumentError } from '../../core/errors';
import { kernels, type ClassAxis } from '../kernels/kernels';
import { formatShape, isSameShape, type Shape } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsOf, requireFloat } from './floats';
import { indicesOf } from './indices';
import { axisOf } from './softmax';

export type LossReduction = 'mean' | 'sum' | 'none';

export interface CrossEntropyOperands {
  readonly reduction: LossReduction;
  readonly ignoreIndex: number;
  readonly labelSmoothing: number;
}

/**
 * Cross entropy of logits and class indices.
 *
 * Shapes: logits [classes], [n, classes] or [n, classes, d1, ...]; target the same without classes. The mean is over the
 * targets that are not ignored; NaN if all are.
 */
export function crossEntropy(logits: Value, target: Value, operands: CrossEntropyOperands): Result {
  requireFloat('crossEntropy', logits);
  const classDim = logits.shape.length === 1 ? 0 : 1;
  const targetShape = logits.shape.toSpliced(classDim, 1);
  if (logits.shape.length === 0 || !isSameShape(target.shape, targetShape)) {
    throw new InvalidArgumentError(
      `crossEntropy: expected logits [n, classes] and target [n], got ${formatShape(logits.shape)} and ${formatShape(target.shape)}. Further dimensions come after the classes.`,
    );
  }
  const axis = axisOf(logits.shape, classDim);
  const targets = indicesOf('crossEntropy: target', target, axis.length, operands.ignoreIndex);
  const how: ClassAxis = { ...axis, labelSmoothing: operands.labelSmoothing };
  const { dtype } = logits.storage;
  const losses = new Float64Array(targets.length);
  const logSumExp = Storage.allocate('float64', targets.length);
  kernels.crossEntropy(losses, logSumExp.buffer as Float64Array, floatsOf(logits.storage), targets, how);
  const divisor = operands.reduction === 'mean' ? targets.filter((index) => index >= 0).length : 1;
  const shape: Shape = operands.reduction === 'none' ? targetShape : [];
  return {
    output: computeValue(dtype, shape, (out) => {
      if (operands.reduction === 'none') out.set(losses);
      else out[0] = losses.reduce((total, loss) => total + loss, 0) / divisor;
    }),
    saves: [logits, target, { storage: logSumExp, shape: targetShape }],
    backward: (gradient) => {
      const incoming = floatsOf(gradient.storage);
      const isScalar = operands.reduction !== 'none';
      const slopes = Float64Array.from(targets, (_index, i) => (incoming[isScalar ? 0 : i] as number) / divisor);
      const ofLogits = computeValue(dtype, logits.shape, (out) =>
        kernels.crossEntropyBackward(
          out,
          slopes,
          floatsOf(logits.storage),
          logSumExp.buffer as Float64Array,
          targets,
          how,
        ),
      );
      return [ofLogits, undefined];
    },
  };
}
