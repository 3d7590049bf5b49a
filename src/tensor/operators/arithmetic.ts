/** Binary arithmetic with broadcasting. */
import { allocateBuffer, isFloatDType, type DType } from '../../core/dtype';
import { InvalidArgumentError } from '../../core/errors';
import { kernels, type BinaryOp, type Floats, type Numbers } from '../kernels/kernels';
import { planBroadcast } from '../kernels/plans';
import { broadcastShapes, sizeOf, type Shape } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsFor, floatsOf, requireFloat, requireSameDType, zerosValue } from './floats';
import { sumTo } from './sum-to';

/** A tensor's value, or a number that takes the dtype of the other side. */
export type Operand = Value | number | bigint;

function isValue(operand: Operand): operand is Value {
  return typeof operand === 'object';
}

const NO_DIMENSIONS: Shape = Object.freeze([]);

function shapeOf(operand: Operand): Shape {
  return isValue(operand) ? operand.shape : NO_DIMENSIONS;
}

function dtypeOfOperands(op: string, a: Operand, b: Operand): DType {
  if (isValue(a) && isValue(b)) requireSameDType(op, a, b);
  const value = isValue(a) ? a : (b as Value);
  return value.storage.dtype;
}

/** The operand as floats. A number is rounded to float32 unless the computation is in float64, as torch does. */
function operandFloats(operand: Operand, dtype: DType): Floats {
  if (isValue(operand)) return floatsOf(operand.storage);
  return dtype === 'float64' ? Float64Array.of(Number(operand)) : Float32Array.of(Number(operand));
}

function floatBinary(op: BinaryOp, dtype: DType, a: Operand, b: Operand): Value {
  const shape = broadcastShapes(shapeOf(a), shapeOf(b), op);
  const plan = planBroadcast(shape, shapeOf(a), shapeOf(b));
  return computeValue(dtype, shape, (out) =>
    kernels.binary(op, out, operandFloats(a, dtype), operandFloats(b, dtype), plan),
  );
}

function integerElements(op: string, operand: Operand, dtype: DType): Numbers | BigInt64Array {
  if (isValue(operand)) return operand.storage.buffer as Numbers | BigInt64Array;
  if (typeof operand === 'number' && !Number.isSafeInteger(operand)) {
    throw new InvalidArgumentError(
      `${op}: an ${dtype} tensor takes whole numbers, got ${operand}. Convert it with .to('float32') first.`,
    );
  }
  const element = allocateBuffer(dtype, 1) as Numbers | BigInt64Array;
  element[0] = dtype === 'int64' ? BigInt(operand) : Number(operand);
  return element;
}

function integerBinary(op: BinaryOp, dtype: DType, a: Operand, b: Operand): Value {
  if (op === 'div' || op === 'pow') {
    throw new InvalidArgumentError(
      `${op}: integers are not divided or raised, got ${dtype}. Use .to('float32') first.`,
    );
  }
  const shape = broadcastShapes(shapeOf(a), shapeOf(b), op);
  const plan = planBroadcast(shape, shapeOf(a), shapeOf(b));
  const left = integerElements(op, a, dtype);
  const right = integerElements(op, b, dtype);
  const storage = Storage.allocate(dtype, sizeOf(shape));
  if (dtype === 'int64') {
    kernels.binaryBig(op, storage.buffer as BigInt64Array, left as BigInt64Array, right as BigInt64Array, plan);
  } else kernels.binary(op, storage.buffer as Numbers, left as Numbers, right as Numbers, plan);
  return { storage, shape };
}

/** The plain value of a op b, without a gradient. */
function combine(op: BinaryOp, a: Operand, b: Operand): Value {
  const dtype = dtypeOfOperands(op, a, b);
  return isFloatDType(dtype) ? floatBinary(op, dtype, a, b) : integerBinary(op, dtype, a, b);
}

type Gradient = (gradient: Value) => Value;

/** A binary operator, given the gradients of its operands at the result's shape. */
function binary(op: BinaryOp, a: Operand, b: Operand, saves: readonly Operand[], ofA: Gradient, ofB: Gradient): Result {
  return {
    output: combine(op, a, b),
    saves: saves.filter(isValue),
    backward: (gradient, needs) => [
      needs[0] === true && isValue(a) ? sumTo(ofA(gradient), a.shape) : undefined,
      needs[1] === true && isValue(b) ? sumTo(ofB(gradient), b.shape) : undefined,
    ],
  };
}

/** a + b */
export function add(a: Operand, b: Operand): Result {
  const same: Gradient = (gradient) => gradient;
  return binary('add', a, b, [], same, same);
}

/** a - b */
export function sub(a: Operand, b: Operand): Result {
  return binary(
    'sub',
    a,
    b,
    [],
    (gradient) => gradient,
    (gradient) => combine('mul', gradient, -1),
  );
}

/** a * b */
export function mul(a: Operand, b: Operand): Result {
  return binary(
    'mul',
    a,
    b,
    [a, b],
    (gradient) => combine('mul', gradient, b),
    (gradient) => combine('mul', gradient, a),
  );
}

/** a / b, floating point only */
export function div(a: Operand, b: Operand): Result {
  return binary(
    'div',
    a,
    b,
    [a, b],
    (gradient) => combine('div', gradient, b),
    (gradient) => combine('mul', combine('mul', gradient, -1), combine('div', combine('div', a, b), b)),
  );
}

/** a to the power of b, floating point only */
export function pow(a: Operand, b: Operand): Result {
  for (const operand of [a, b]) if (isValue(operand)) requireFloat('pow', operand);
  return {
    output: b === 2 ? combine('mul', a, a) : combine('pow', a, b),
    saves: [a, b].filter(isValue),
    backward: (gradient, needs) => [
      needs[0] === true && isValue(a) ? sumTo(combine('mul', gradient, powerSlope(a, b)), a.shape) : undefined,
      needs[1] === true && isValue(b) ? sumTo(combine('mul', gradient, exponentSlope(a, b)), b.shape) : undefined,
    ],
  };
}

/** b a^(b-1); 0 where b is 0, also for a = 0. */
function powerSlope(a: Value, b: Operand): Value {
  if (isValue(b)) {
    const slope = combine('mul', b, combine('pow', a, combine('sub', b, 1)));
    const exponent = fullFloats(b, slope.shape);
    const floats = floatsOf(slope.storage);
    return computeValue(a.storage.dtype, slope.shape, (out) => {
      for (let i = 0; i < out.length; i++) out[i] = exponent[i] === 0 ? 0 : (floats[i] as number);
    });
  }
  if (b === 0) return zerosValue(a.storage.dtype, a.shape);
  return combine('mul', b === 2 ? a : combine('pow', a, Number(b) - 1), b);
}

/** a^b log(a); 0 where a is 0 and b is not negative. */
function exponentSlope(a: Operand, b: Value): Value {
  const { dtype } = b.storage;
  const shape = broadcastShapes(shapeOf(a), b.shape, 'pow');
  const base = fullFloats(a, shape, dtype);
  const exponent = fullFloats(b, shape);
  return computeValue(dtype, shape, (out) => {
    for (let i = 0; i < out.length; i++) {
      const x = base[i] as number;
      const y = exponent[i] as number;
      out[i] = x === 0 && y >= 0 ? 0 : x ** y * Math.log(x);
    }
  });
}

/** The operand's floats repeated to `shape`. */
function fullFloats(operand: Operand, shape: Shape, dtype?: DType): Floats {
  if (!isValue(operand)) return floatsFor(dtype as DType, sizeOf(shape)).fill(Number(operand));
  return floatsOf(combine('add', operand, zerosValue(operand.storage.dtype, shape)).storage);
}
