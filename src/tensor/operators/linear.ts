import { InvalidArgumentError } from '../../core/errors';
import { kernels, type Floats, type Matrix } from '../kernels/kernels';
import { formatShape, sizeOf, type Shape } from '../shape';
import type { Result, Value } from '../value';
import { computeValue, floatsOf, requireFloat, requireSameDType } from './floats';
import { sumTo } from './sum-to';

function rowMajor(data: Floats, columns: number): Matrix {
  return { data, offset: 0, rowStride: columns, columnStride: 1 };
}

function transposed(data: Floats, columns: number): Matrix {
  return { data, offset: 0, rowStride: 1, columnStride: columns };
}

/**
 * x W^T + b, rounded once.
 *
 * Shapes: x [..., in], weight [out, in], bias [out] -> [..., out].
 */
export function linear(x: Value, weight: Value, bias: Value | undefined): Result {
  checkOperands(x, weight, bias);
  const [outWidth, inWidth] = weight.shape as [number, number];
  const { dtype } = x.storage;
  const leading = x.shape.slice(0, -1);
  const rows = sizeOf(leading);
  const shape: Shape = Object.freeze([...leading, outWidth]);
  const output = computeValue(dtype, shape, (out) => {
    const a = rowMajor(floatsOf(x.storage), inWidth);
    const b = transposed(floatsOf(weight.storage), inWidth);
    const size = { rows, columns: outWidth, depth: inWidth };
    kernels.matmul(out, 0, a, b, size, bias && floatsOf(bias.storage));
  });
  const ofX = (gradient: Floats): Value =>
    computeValue(dtype, x.shape, (out) => {
      const size = { rows, columns: inWidth, depth: outWidth };
      kernels.matmul(out, 0, rowMajor(gradient, outWidth), rowMajor(floatsOf(weight.storage), inWidth), size);
    });
  const ofWeight = (gradient: Floats): Value =>
    computeValue(dtype, weight.shape, (out) => {
      const size = { rows: outWidth, columns: inWidth, depth: rows };
      kernels.matmul(out, 0, transposed(gradient, outWidth), rowMajor(floatsOf(x.storage), inWidth), size);
    });
  return {
    output,
    saves: [x, weight],
    backward: (gradient, needs) => {
      const floats = floatsOf(gradient.storage);
      return [
        needs[0] === true ? ofX(floats) : undefined,
        needs[1] === true ? ofWeight(floats) : undefined,
        needs[2] === true && bias !== undefined ? sumTo(gradient, bias.shape) : undefined,
      ];
    },
  };
}

function checkOperands(x: Value, weight: Value, bias: Value | undefined): void {
  requireFloat('linear', x);
  requireSameDType('linear', x, weight);
  if (bias !== undefined) requireSameDType('linear', x, bias);
  const [outWidth, inWidth] = weight.shape;
  const fits =
    weight.shape.length === 2 &&
    x.shape.at(-1) === inWidth &&
    (bias === undefined || (bias.shape.length === 1 && bias.shape[0] === outWidth));
  if (fits) return;
  throw new InvalidArgumentError(
    `linear: expected x [..., in], weight [out, in] and bias [out], got ${formatShape(x.shape)}, ${formatShape(weight.shape)}${bias === undefined ? '' : ` and ${formatShape(bias.shape)}`}.`,
  );
}
