/** Comparisons give uint8 tensors of 0 and 1; choices read them. None of them changes a value, so any dtype goes. */
import { isFloatDType, type DType } from '../../core/dtype';
import { InvalidArgumentError } from '../../core/errors';
import { kernels, type Comparison, type Elements, type Floats } from '../kernels/kernels';
import { planBroadcast } from '../kernels/plans';
import { broadcastShapes, sizeOf, type Shape } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import type { Operand } from './arithmetic';
import { cast, convertBuffer } from './cast';
import { computeValue, floatsFor, floatsOf, requireFloat, requireSameDType } from './floats';
import { broadcastTo } from './rearrange';
import { sumTo } from './sum-to';

interface Comparable {
  readonly elements: Elements;
  readonly shape: Shape;
}

function comparable({ storage, shape }: Value): Comparable {
  const isHalf = storage.dtype === 'float16' || storage.dtype === 'bfloat16';
  return { elements: isHalf ? floatsOf(storage) : storage.buffer, shape };
}

/** A number is rounded to a floating point dtype, as the elements are; against integers it stays what it is. */
function comparableNumber(number: number | bigint, dtype: DType): Comparable {
  if (dtype === 'int64') return { elements: BigInt64Array.of(BigInt(number)), shape: [] };
  const double = Storage.of(Float64Array.of(Number(number)));
  if (!isFloatDType(dtype)) return { elements: double.buffer, shape: [] };
  return { elements: floatsOf(Storage.of(convertBuffer(double, dtype))), shape: [] };
}

/** 1 where the comparison holds, else 0 (uint8). */
export function compare(op: Comparison, a: Value, b: Operand): Result {
  if (typeof b === 'object') requireSameDType(op, a, b);
  const { dtype } = a.storage;
  if (dtype === 'int64' && typeof b === 'number' && !Number.isInteger(b))
    return compare(op, cast(a, 'float64').output, b);
  const left = comparable(a);
  const right = typeof b === 'object' ? comparable(b) : comparableNumber(b, dtype);
  const shape = broadcastShapes(left.shape, right.shape, op);
  const storage = Storage.allocate('uint8', sizeOf(shape));
  const plan = planBroadcast(shape, left.shape, right.shape);
  kernels.compare(op, storage.buffer as Uint8Array, left.elements, right.elements, plan);
  return { output: { storage, shape }, saves: [], backward: undefined };
}

function conditionAt(condition: Value, shape: Shape): Uint8Array {
  if (condition.storage.dtype !== 'uint8') {
    throw new InvalidArgumentError(
      `where: expected a uint8 condition, as comparisons give, got ${condition.storage.dtype}. Use .ne(0).`,
    );
  }
  return broadcastTo(condition, shape).output.storage.buffer as Uint8Array;
}

function fullOperand(operand: Operand, dtype: DType, shape: Shape): Floats {
  if (typeof operand === 'object') return floatsOf(broadcastTo(operand, shape).output.storage);
  return floatsFor(dtype, sizeOf(shape)).fill(Number(operand));
}

/** a where the condition is not 0, else b; all three broadcast. Floating point. */
export function where(condition: Value, a: Operand, b: Operand): Result {
  const typed = typeof a === 'object' ? a : b;
  if (typeof typed !== 'object')
    throw new InvalidArgumentError('where: expected a tensor on at least one side, got two numbers.');
  requireFloat('where', typed);
  if (typeof a === 'object' && typeof b === 'object') requireSameDType('where', a, b);
  const { dtype } = typed.storage;
  const shapes = [condition, a, b].map((operand) => (typeof operand === 'object' ? operand.shape : []));
  const shape = shapes.reduce((whole, own) => broadcastShapes(whole, own, 'where'));
  const choice = conditionAt(condition, shape);
  const output = computeValue(dtype, shape, (out) => {
    const chosen = fullOperand(a, dtype, shape);
    const rejected = fullOperand(b, dtype, shape);
    for (let i = 0; i < out.length; i++) out[i] = (choice[i] === 0 ? rejected[i] : chosen[i]) as number;
  });
  const masked = (gradient: Value, own: Shape, negate: boolean): Value =>
    sumTo(
      computeValue(dtype, shape, (out) => kernels.mask(out, floatsOf(gradient.storage), choice, negate)),
      own,
    );
  return {
    output,
    saves: [condition],
    backward: (gradient, needs) => [
      undefined,
      needs[1] === true && typeof a === 'object' ? masked(gradient, a.shape, false) : undefined,
      needs[2] === true && typeof b === 'object' ? masked(gradient, b.shape, true) : undefined,
    ],
  };
}
