/** Functions of one tensor, element by element. */
import { isFloatDType } from '../../core/dtype';
import { kernels, SLOPE_SOURCE, type UnaryOp } from '../kernels/kernels';
import type { Result, Value } from '../value';
import { sub } from './arithmetic';
import { computeValue, floatsOf, requireFloat } from './floats';

/** f(x), floating point only. */
export function unary(op: UnaryOp, x: Value): Result {
  requireFloat(op, x);
  const { dtype } = x.storage;
  const output = computeValue(dtype, x.shape, (out) => kernels.unary(op, out, floatsOf(x.storage)));
  const saved = SLOPE_SOURCE[op] === 'argument' ? x : output;
  return {
    output,
    saves: [saved],
    backward: (gradient) => [
      computeValue(dtype, x.shape, (out) =>
        kernels.unaryBackward(op, out, floatsOf(gradient.storage), floatsOf(saved.storage)),
      ),
    ],
  };
}

/** -x; integers wrap. */
export function neg(x: Value): Result {
  const { dtype } = x.storage;
  if (!isFloatDType(dtype)) return { ...sub(0, x), backward: undefined };
  const negate = (value: Value): Value =>
    computeValue(dtype, x.shape, (out) => kernels.scale(out, floatsOf(value.storage), -1));
  return { output: negate(x), saves: [], backward: (gradient) => [negate(gradient)] };
}
