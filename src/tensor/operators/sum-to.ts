import { kernels } from '../kernels/kernels';
import { planReduction } from '../kernels/plans';
import { isSameShape, type Shape } from '../shape';
import type { Value } from '../value';
import { computeValue, floatsOf } from './floats';

/** The sum of `value` over the dimensions along which `shape` was broadcast to it: the backward of broadcasting. */
export function sumTo(value: Value, shape: Shape): Value {
  if (isSameShape(value.shape, shape)) return value;
  const missing = value.shape.length - shape.length;
  const kept = [...new Array<number>(missing).fill(1), ...shape];
  const plan = planReduction(value.shape, kept);
  return computeValue(value.storage.dtype, shape, (out) => kernels.sum(out, floatsOf(value.storage), plan, 1));
}
