import { kernels, type Axis } from '../kernels/kernels';
import { resolveDim, sizeOf, type Shape } from '../shape';
import type { Result, Value } from '../value';
import { computeValue, floatsOf, requireFloat } from './floats';

/** The shape seen along one dimension. */
export function axisOf(shape: Shape, dim: number): Axis {
  return { outer: sizeOf(shape.slice(0, dim)), length: shape[dim] as number, inner: sizeOf(shape.slice(dim + 1)) };
}

/** exp(x) divided by its sum along a dimension. */
export function softmax(x: Value, dim: number): Result {
  return along('softmax', x, dim);
}

/** The logarithm of softmax. */
export function logSoftmax(x: Value, dim: number): Result {
  return along('logSoftmax', x, dim);
}

function along(op: 'softmax' | 'logSoftmax', x: Value, dim: number): Result {
  requireFloat(op, x);
  const { dtype } = x.storage;
  const axis = axisOf(x.shape, resolveDim(dim, x.shape.length, op));
  const output = computeValue(dtype, x.shape, (out) => kernels[op](out, floatsOf(x.storage), axis));
  return {
    output,
    saves: [output],
    backward: (gradient) => [
      computeValue(dtype, x.shape, (out) =>
        kernels[`${op}Backward`](out, floatsOf(gradient.storage), floatsOf(output.storage), axis),
      ),
    ],
  };
}
