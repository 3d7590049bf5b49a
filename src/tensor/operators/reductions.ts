/** Reductions over dimensions. */
import { isFloatDType } from '../../core/dtype';
import { InvalidArgumentError } from '../../core/errors';
import { kernels, type Numbers } from '../kernels/kernels';
import { planReduction } from '../kernels/plans';
import { formatShape, reducedShape, resolveDim, resolveDims, sizeOf, type Shape } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsOf, requireFloat } from './floats';
import { broadcastTo } from './rearrange';
import { div } from './arithmetic';

export type Dims = number | readonly number[] | undefined;

interface Reduction {
  readonly shape: Shape;
  /** The result's shape with the reduced dimensions kept as 1. */
  readonly kept: Shape;
  /** Elements that go into one of the result. */
  readonly count: number;
}

function planOf(what: string, x: Value, dims: Dims, keepDim: boolean): Reduction {
  const axes = resolveDims(dims, x.shape.length, what);
  const count = axes.reduce((product, axis) => product * (x.shape[axis] as number), 1);
  return { shape: reducedShape(x.shape, axes, keepDim), kept: reducedShape(x.shape, axes, true), count };
}

/** Sum over dimensions, all of them by default. Integers give int64. */
export function sum(x: Value, dims?: Dims, keepDim = false): Result {
  const reduction = planOf('sum', x, dims, keepDim);
  if (!isFloatDType(x.storage.dtype)) return integerSum(x, reduction);
  return weightedSum(x, reduction, 1);
}

/** Mean over dimensions, all of them by default; NaN over none. */
export function mean(x: Value, dims?: Dims, keepDim = false): Result {
  requireFloat('mean', x);
  const reduction = planOf('mean', x, dims, keepDim);
  return weightedSum(x, reduction, reduction.count);
}

function weightedSum(x: Value, { shape, kept }: Reduction, divisor: number): Result {
  const plan = planReduction(x.shape, kept);
  return {
    output: computeValue(x.storage.dtype, shape, (out) => kernels.sum(out, floatsOf(x.storage), plan, divisor)),
    saves: [],
    backward: (gradient) => {
      const scaled = divisor === 1 ? gradient : div(gradient, divisor).output;
      return [broadcastTo({ storage: scaled.storage, shape: kept }, x.shape).output];
    },
  };
}

/** Exact below 2^53; int64 wraps as its arithmetic does. */
function integerSum(x: Value, { shape, kept }: Reduction): Result {
  const storage = Storage.allocate('int64', sizeOf(shape));
  const plan = planReduction(x.shape, kept);
  if (x.storage.dtype === 'int64')
    kernels.sumBig(storage.buffer as BigInt64Array, x.storage.buffer as BigInt64Array, plan);
  else {
    const totals = new Float64Array(storage.length);
    kernels.sum(totals, x.storage.buffer as Numbers, plan, 1);
    (storage.buffer as BigInt64Array).set(BigInt64Array.from(totals, (total) => BigInt(total)));
  }
  return { output: { storage, shape }, saves: [], backward: undefined };
}

/** Largest (or smallest) element over dimensions; NaN wins; equal ones share the gradient equally. */
export function extreme(op: 'max' | 'min', x: Value, dims?: Dims, keepDim = false): Result {
  const { dtype } = x.storage;
  const { shape, kept, count } = planOf(op, x, dims, keepDim);
  if (count === 0 && sizeOf(shape) > 0) {
    throw new InvalidArgumentError(`${op}: no elements to choose from in shape ${formatShape(x.shape)}.`);
  }
  const plan = planReduction(x.shape, kept);
  if (!isFloatDType(dtype)) {
    if (dtype === 'int64')
      throw new InvalidArgumentError(`${op}: int64 is not supported; use .to('int32') or .to('float64').`);
    const storage = Storage.allocate(dtype, sizeOf(shape));
    kernels.extreme(op, storage.buffer as Numbers, x.storage.buffer as Numbers, plan);
    return { output: { storage, shape }, saves: [], backward: undefined };
  }
  const output = computeValue(dtype, shape, (out) => kernels.extreme(op, out, floatsOf(x.storage), plan));
  return {
    output,
    saves: [x, output],
    backward: (gradient) => [
      computeValue(dtype, x.shape, (out) =>
        kernels.extremeBackward(out, floatsOf(gradient.storage), floatsOf(x.storage), floatsOf(output.storage), plan),
      ),
    ],
  };
}

/** Index (int32) of the first largest element along a dimension, or in the flat tensor; NaN counts as largest. */
export function argmax(x: Value, dim?: number, keepDim = false): Result {
  const axis = dim === undefined ? undefined : resolveDim(dim, x.shape.length, 'argmax');
  const extent = axis === undefined ? sizeOf(x.shape) : (x.shape[axis] as number);
  const shape = reducedShape(x.shape, resolveDims(axis, x.shape.length, 'argmax'), keepDim);
  if (extent === 0)
    throw new InvalidArgumentError(`argmax: no elements to choose from in shape ${formatShape(x.shape)}.`);
  const elements =
    x.storage.dtype === 'int64'
      ? Float64Array.from(x.storage.buffer as BigInt64Array, Number)
      : isFloatDType(x.storage.dtype)
        ? floatsOf(x.storage)
        : (x.storage.buffer as Numbers);
  const storage = Storage.allocate('int32', sizeOf(shape));
  const inner = axis === undefined ? 1 : sizeOf(x.shape.slice(axis + 1));
  const outer = axis === undefined ? 1 : sizeOf(x.shape.slice(0, axis));
  kernels.argmax(storage.buffer as Int32Array, elements, { outer, length: extent, inner });
  return { output: { storage, shape }, saves: [], backward: undefined };
}
