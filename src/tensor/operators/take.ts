import { isFloatDType } from '../../core/dtype';
import { kernels } from '../kernels/kernels';
import { resolveDim, sizeOf } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsOf } from './floats';
import { indicesOf } from './indices';
import { axisOf } from './softmax';

/** The slices of x at `indices` along a dimension, which the dimensions of `indices` replace. */
export function take(what: string, x: Value, dim: number, indices: Value): Result {
  const at = resolveDim(dim, x.shape.length, what);
  const axis = axisOf(x.shape, at);
  const picked = indicesOf(what, indices, axis.length);
  const shape = Object.freeze(x.shape.toSpliced(at, 1, ...indices.shape));
  const { dtype } = x.storage;
  const storage = Storage.allocate(dtype, sizeOf(shape));
  kernels.take(storage.buffer, x.storage.buffer, picked, axis);
  if (!isFloatDType(dtype)) return { output: { storage, shape }, saves: [], backward: undefined };
  return {
    output: { storage, shape },
    saves: [indices],
    backward: (gradient) => [
      computeValue(dtype, x.shape, (out) => kernels.takeBackward(out, floatsOf(gradient.storage), picked, axis)),
      undefined,
    ],
  };
}
