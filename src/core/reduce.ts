/**
 * The reduction of a group's buffers, element by element.
 *
 * [Note: reduction order] The accumulator starts as rank 0's element and takes ranks 1, 2, ... in order. float32
 * accumulates in float32, float64 in float64; float16 and bfloat16 accumulate in float32 and round once at the end.
 * Average divides once at the end. Integer Sum and Product wrap; integer Average sums in a wide accumulator, then
 * truncates toward zero. Min and Max propagate NaN, and every NaN that comes out is the canonical one. A group of one
 * returns its input. An element's result depends on nothing but the ranks' elements at its place, so chunks, buckets and
 * reduce-scatter give the same bits.
 */
import { makeNaNCanonical, traceOf } from './canonical-nan';
import { allocateBuffer, copyBuffer, dtypeOf, viewBuffer, type DType, type HostBuffer } from './dtype';
import { sumFloat32, sumFloat32Traced } from './float32-sum';
import { narrowToBFloat16, narrowToFloat16, widenBFloat16, widenFloat16 } from './half';
import { invariant } from './invariant';
import { ReduceOp } from './reduce-op';

/** Elements reduced at a time: the accumulator stays in the first-level cache. */
const BLOCK_ELEMENTS = 4096;

type FloatArray = Float32Array | Float64Array;
type NumberArray = Float32Array | Float64Array | Int8Array | Uint8Array | Int32Array;

/**
 * Write to `target` the reduction of `inputs`, in the order given (rank order).
 *
 * All have the same dtype and length; `target` may be one of the inputs. Reduce ops that the dtype does not take must
 * have been refused before (`checkReduceOp`).
 */
export function reduceBuffers(target: HostBuffer, inputs: readonly HostBuffer[], op: ReduceOp): void {
  const first = inputs[0];
  invariant(first !== undefined, 'a reduction needs at least one input');
  if (inputs.length === 1) {
    if (target !== first) copyBuffer(target, first);
    return;
  }
  const dtype = dtypeOf(target);
  const reduceBlock = blockReducer(dtype, op);
  const length = target.length;
  for (let start = 0; start < length; start += BLOCK_ELEMENTS) {
    const count = Math.min(BLOCK_ELEMENTS, length - start);
    const blocks = inputs.map((input) => viewBuffer(input, start, count));
    copyBuffer(target, reduceBlock(blocks), start);
  }
}

/** What is left of an average once everything has been summed: divide each element, as `reduceBuffers` does at its end. */
export function divideBuffer(target: HostBuffer, divisor: number): void {
  const dtype = dtypeOf(target);
  invariant(dtype === 'float32' || dtype === 'float64', `a buffer of ${dtype} is not divided apart from its sum`);
  const trace = divideTraced(target as FloatArray, divisor);
  if (Number.isNaN(trace)) makeNaNCanonical(target as FloatArray);
}

type BlockReducer = (blocks: readonly HostBuffer[]) => HostBuffer;

function blockReducer(dtype: DType, op: ReduceOp): BlockReducer {
  switch (dtype) {
    case 'float32':
    case 'float64':
      return floatReducer(dtype, op);
    case 'float16':
    case 'bfloat16':
      return halfReducer(dtype, op);
    case 'int8':
    case 'uint8':
    case 'int32':
      return op === ReduceOp.Average ? integerAverager(dtype) : integerReducer(dtype, op);
    case 'int64':
      return op === ReduceOp.Average ? bigAverager() : bigReducer(op);
  }
}

function floatReducer(dtype: 'float32' | 'float64', op: ReduceOp): BlockReducer {
  const room = allocateBuffer(dtype, BLOCK_ELEMENTS);
  return (blocks) => {
    const accumulator = firstInto(room, blocks) as FloatArray;
    const trace = combineAllFloats(accumulator, blocks as readonly FloatArray[], op);
    if (Number.isNaN(trace)) makeNaNCanonical(accumulator);
    return accumulator;
  };
}

/**
 * Take ranks 1, 2, ... into the accumulator, which holds rank 0's. Returns a number that is NaN if any result is
 * ([Note: canonical NaN]), found in the pass that writes the results where that is the cheapest.
 */
function combineAllFloats(accumulator: FloatArray, blocks: readonly FloatArray[], op: ReduceOp): number {
  if (dtypeOf(accumulator) === 'float32' && (op === ReduceOp.Sum || op === ReduceOp.Average)) {
    const single = accumulator as Float32Array;
    const operands = blocks as readonly Float32Array[];
    if (op === ReduceOp.Sum) return sumFloat32Traced(single, operands, 1);
    sumFloat32(single, operands, 1);
  } else {
    for (let rank = 1; rank < blocks.length; rank++) combineFloats(accumulator, blocks[rank] as FloatArray, op);
  }
  return op === ReduceOp.Average ? divideTraced(accumulator, blocks.length) : traceOf(accumulator);
}

function halfReducer(dtype: 'float16' | 'bfloat16', op: ReduceOp): BlockReducer {
  const widen = dtype === 'float16' ? widenFloat16 : widenBFloat16;
  const narrow = dtype === 'float16' ? narrowToFloat16 : narrowToBFloat16;
  const accumulatorRoom = new Float32Array(BLOCK_ELEMENTS);
  const operandRoom = new Float32Array(BLOCK_ELEMENTS);
  const resultRoom = allocateBuffer(dtype, BLOCK_ELEMENTS);
  return (blocks) => {
    const halves = blocks as readonly Uint16Array[];
    const count = (halves[0] as Uint16Array).length;
    const accumulator = accumulatorRoom.subarray(0, count);
    const operand = operandRoom.subarray(0, count);
    const result = viewBuffer(resultRoom, 0, count);
    widen(halves[0] as Uint16Array, accumulator);
    for (let rank = 1; rank < halves.length; rank++) {
      widen(halves[rank] as Uint16Array, operand);
      combineFloats(accumulator, operand, op);
    }
    const trace = op === ReduceOp.Average ? divideTraced(accumulator, halves.length) : traceOf(accumulator);
    if (Number.isNaN(trace)) makeNaNCanonical(accumulator);
    narrow(accumulator, result);
    return result;
  };
}

function integerReducer(dtype: 'int8' | 'uint8' | 'int32', op: ReduceOp): BlockReducer {
  const room = allocateBuffer(dtype, BLOCK_ELEMENTS);
  return (blocks) => {
    const accumulator = firstInto(room, blocks);
    for (let rank = 1; rank < blocks.length; rank++) combineIntegers(accumulator, blocks[rank] as NumberArray, op);
    return accumulator;
  };
}

/** float64 holds the sum of any 2^21 int32 values exactly. */
function integerAverager(dtype: 'int8' | 'uint8' | 'int32'): BlockReducer {
  const room = new Float64Array(BLOCK_ELEMENTS);
  const resultRoom = allocateBuffer(dtype, BLOCK_ELEMENTS);
  return (blocks) => {
    const accumulator = firstInto(room, blocks) as Float64Array;
    for (let rank = 1; rank < blocks.length; rank++) sum(accumulator, blocks[rank] as NumberArray);
    const result = resultRoom.subarray(0, accumulator.length);
    for (let i = 0; i < accumulator.length; i++) result[i] = Math.trunc((accumulator[i] as number) / blocks.length);
    return result;
  };
}

function bigReducer(op: ReduceOp): BlockReducer {
  const room = new BigInt64Array(BLOCK_ELEMENTS);
  return (blocks) => {
    const count = (blocks[0] as BigInt64Array).length;
    const accumulator = room.subarray(0, count);
    accumulator.set(blocks[0] as BigInt64Array);
    for (let rank = 1; rank < blocks.length; rank++) {
      const operand = blocks[rank] as BigInt64Array;
      for (let i = 0; i < count; i++) accumulator[i] = combineBig(accumulator[i] as bigint, operand[i] as bigint, op);
    }
    return accumulator;
  };
}

function bigAverager(): BlockReducer {
  return (blocks) => {
    const result = new BigInt64Array((blocks[0] as BigInt64Array).length);
    const size = BigInt(blocks.length);
    for (let i = 0; i < result.length; i++) {
      let total = 0n;
      for (const block of blocks) total += (block as BigInt64Array)[i] as bigint;
      result[i] = total / size; // BigInt division truncates toward zero
    }
    return result;
  };
}

function firstInto(room: NumberArray, blocks: readonly HostBuffer[]): NumberArray {
  const first = blocks[0] as NumberArray;
  const accumulator = room.subarray(0, first.length);
  accumulator.set(first);
  return accumulator;
}

function combineFloats(accumulator: NumberArray, operand: NumberArray, op: ReduceOp): void {
  switch (op) {
    case ReduceOp.Sum:
    case ReduceOp.Average:
      return dtypeOf(accumulator) === 'float32'
        ? sumFloat32(accumulator as Float32Array, [operand as Float32Array], 0)
        : sum(accumulator, operand);
    case ReduceOp.Product:
      return multiply(accumulator, operand);
    case ReduceOp.Min:
      return minimum(accumulator, operand);
    case ReduceOp.Max:
      return maximum(accumulator, operand);
    default:
      return invariant(false, `${op} on floating point numbers was not refused`);
  }
}

function combineIntegers(accumulator: NumberArray, operand: NumberArray, op: ReduceOp): void {
  switch (op) {
    case ReduceOp.Sum:
      return sum(accumulator, operand);
    case ReduceOp.Product:
      for (let i = 0; i < accumulator.length; i++)
        accumulator[i] = Math.imul(accumulator[i] as number, operand[i] as number);
      return;
    case ReduceOp.Min:
      return minimum(accumulator, operand);
    case ReduceOp.Max:
      return maximum(accumulator, operand);
    case ReduceOp.BitAnd:
      for (let i = 0; i < accumulator.length; i++) accumulator[i] = (accumulator[i] as number) & (operand[i] as number);
      return;
    case ReduceOp.BitOr:
      for (let i = 0; i < accumulator.length; i++) accumulator[i] = (accumulator[i] as number) | (operand[i] as number);
      return;
    case ReduceOp.BitXor:
      for (let i = 0; i < accumulator.length; i++) accumulator[i] = (accumulator[i] as number) ^ (operand[i] as number);
      return;
    case ReduceOp.Average:
      return invariant(false, 'the integer average has an accumulator of its own');
  }
}

/** Storing into a BigInt64Array wraps to 64 bits. */
function combineBig(a: bigint, b: bigint, op: ReduceOp): bigint {
  switch (op) {
    case ReduceOp.Sum:
      return a + b;
    case ReduceOp.Product:
      return a * b;
    case ReduceOp.Min:
      return b < a ? b : a;
    case ReduceOp.Max:
      return b > a ? b : a;
    case ReduceOp.BitAnd:
      return a & b;
    case ReduceOp.BitOr:
      return a | b;
    case ReduceOp.BitXor:
      return a ^ b;
    case ReduceOp.Average:
      return invariant(false, 'the integer average has an accumulator of its own') as never;
  }
}

function sum(accumulator: NumberArray, operand: NumberArray): void {
  for (let i = 0; i < accumulator.length; i++) accumulator[i] = (accumulator[i] as number) + (operand[i] as number);
}

function multiply(accumulator: NumberArray, operand: NumberArray): void {
  for (let i = 0; i < accumulator.length; i++) accumulator[i] = (accumulator[i] as number) * (operand[i] as number);
}

/** Math.min and Math.max return NaN if either side is NaN. */
function minimum(accumulator: NumberArray, operand: NumberArray): void {
  for (let i = 0; i < accumulator.length; i++)
    accumulator[i] = Math.min(accumulator[i] as number, operand[i] as number);
}

function maximum(accumulator: NumberArray, operand: NumberArray): void {
  for (let i = 0; i < accumulator.length; i++)
    accumulator[i] = Math.max(accumulator[i] as number, operand[i] as number);
}

/** Returns a number that is NaN if any result is: [Note: canonical NaN]. A division leaves time for the addition. */
function divideTraced(accumulator: FloatArray, divisor: number): number {
  let total = 0;
  for (let i = 0; i < accumulator.length; i++) {
    const quotient = (accumulator[i] as number) / divisor;
    accumulator[i] = quotient;
    total += quotient;
  }
  return total;
}
