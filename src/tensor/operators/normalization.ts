/** Layer normalisation and RMS normalisation over the last dimensions. */
import { InvalidArgumentError } from '../../core/errors';
import { kernels, type NormShape } from '../kernels/kernels';
import { formatShape, isSameShape, sizeOf, type Shape } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsFor, floatsOf, requireFloat, requireSameDType, valueFrom } from './floats';

export interface NormOperands {
  readonly normalizedShape: Shape;
  readonly eps: number;
}

/** (x - mean) / sqrt(variance + eps) * weight + bias, with the biased variance. */
export function layerNorm(
  x: Value,
  weight: Value | undefined,
  bias: Value | undefined,
  operands: NormOperands,
): Result {
  return normalization('layerNorm', x, weight, bias, operands, true);
}

/** x / sqrt(mean(x^2) + eps) * weight */
export function rmsNorm(x: Value, weight: Value | undefined, operands: NormOperands): Result {
  return normalization('rmsNorm', x, weight, undefined, operands, false);
}

function normalization(
  what: string,
  x: Value,
  weight: Value | undefined,
  bias: Value | undefined,
  { normalizedShape, eps }: NormOperands,
  isCentered: boolean,
): Result {
  checkOperands(what, x, weight, bias, normalizedShape);
  const width = sizeOf(normalizedShape);
  const rows = sizeOf(x.shape.slice(0, x.shape.length - normalizedShape.length));
  const shape: NormShape = { rows, width, eps, isCentered };
  const { dtype } = x.storage;
  const statistics = Storage.allocate('float64', 2 * rows);
  const output = computeValue(dtype, x.shape, (out) => {
    const affine = { weight: weight && floatsOf(weight.storage), bias: bias && floatsOf(bias.storage) };
    kernels.normalize(out, statistics.buffer as Float64Array, floatsOf(x.storage), affine, shape);
  });
  const saved = [x, { storage: statistics, shape: [rows, 2] }];
  return {
    output,
    saves: weight === undefined ? saved : [...saved, weight],
    backward: (gradient, needs) => {
      const out = {
        x: needs[0] === true ? floatsFor(dtype, x.storage.length) : undefined,
        weight: needs[1] === true ? floatsFor(dtype, width) : undefined,
        bias: needs[2] === true ? floatsFor(dtype, width) : undefined,
      };
      kernels.normalizeBackward(
        out,
        floatsOf(gradient.storage),
        floatsOf(x.storage),
        statistics.buffer as Float64Array,
        weight && floatsOf(weight.storage),
        shape,
      );
      return [
        out.x && valueFrom(out.x, dtype, x.shape),
        out.weight && valueFrom(out.weight, dtype, normalizedShape),
        out.bias && valueFrom(out.bias, dtype, normalizedShape),
      ];
    },
  };
}

function checkOperands(
  what: string,
  x: Value,
  weight: Value | undefined,
  bias: Value | undefined,
  normalizedShape: Shape,
): void {
  requireFloat(what, x);
  const last = x.shape.slice(x.shape.length - normalizedShape.length);
  if (normalizedShape.length === 0 || !isSameShape(last, normalizedShape)) {
    throw new InvalidArgumentError(
      `${what}: expected the last dimensions to be ${formatShape(normalizedShape)}, got shape ${formatShape(x.shape)}.`,
    );
  }
  for (const parameter of [weight, bias]) {
    if (parameter === undefined) continue;
    requireSameDType(what, x, parameter);
    if (!isSameShape(parameter.shape, normalizedShape)) {
      throw new InvalidArgumentError(
        `${what}: expected weight and bias of shape ${formatShape(normalizedShape)}, got ${formatShape(parameter.shape)}.`,
      );
    }
  }
}
