/**
 * The reduction of a group's buffers, element by element.
 *
 * [Note: reduction order] The accumulator starts as rank 0's element and takes ranks 1, 2, ... in order. float32
 * accumulates in float32, float64 in float64; float16 and bfloat16 accumulate in float32 and round once at the end.
 * Average divides once at the end. Integer Sum and Product wrap; integer Average sums in a wide accumulator, then
 * truncates toward zero. Min and Max propagate NaN. A group of one returns its input. An element's result depends on
 * nothing but the ranks' elements at its place, so chunks, buckets and reduce-scatter give the same bits.
 */
import { allocateBuffer, copyBuffer, dtypeOf, viewBuffer, type DType, type HostBuffer } from './dtype';
import { narrowToBFloat16, narrowToFloat16, widenBFloat16, widenFloat16 } from './half';
import { invariant } from './invariant';
import { ReduceOp } from './reduce-op';

/** Elements reduced at a time: the accumulator stays in the first-level cache. */
const BLOCK_ELEMENTS = 4096;

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
  const isSum = op === ReduceOp.Sum || op === ReduceOp.Average;
  const room = allocateBuffer(dtype, BLOCK_ELEMENTS);
  return (blocks) => {
    const accumulator = firstInto(room, blocks);
    let rank = 1;
    if (dtype === 'float32' && isSum) {
      for (; rank + 2 < blocks.length; rank += 3) sumThreeFloat32(accumulator as Float32Array, blocks, rank);
    }
    for (; rank < blocks.length; rank++) combineFloats(accumulator, blocks[rank] as NumberArray, op);
    if (op === ReduceOp.Average) divide(accumulator, blocks.length);
    return accumulator;
  };
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
    if (op === ReduceOp.Average) divide(accumulator, halves.length);
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
        ? sumFloat32(accumulator as Float32Array, operand as Float32Array)
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

/**
 * Apart from `sum` so that the engine sees one array type here: three times as fast as the shared loop. Eight elements a
 * turn nearly double that; each is still added on its own, so the bits are the same.
 */
function sumFloat32(accumulator: Float32Array, operand: Float32Array): void {
  const { length } = accumulator;
  const a = accumulator;
  const b = operand;
  let i = 0;
  for (; i + 8 <= length; i += 8) {
    a[i] = (a[i] as number) + (b[i] as number);
    a[i + 1] = (a[i + 1] as number) + (b[i + 1] as number);
    a[i + 2] = (a[i + 2] as number) + (b[i + 2] as number);
    a[i + 3] = (a[i + 3] as number) + (b[i + 3] as number);
    a[i + 4] = (a[i + 4] as number) + (b[i + 4] as number);
    a[i + 5] = (a[i + 5] as number) + (b[i + 5] as number);
    a[i + 6] = (a[i + 6] as number) + (b[i + 6] as number);
    a[i + 7] = (a[i + 7] as number) + (b[i + 7] as number);
  }
  for (; i < length; i++) a[i] = (a[i] as number) + (b[i] as number);
}

/** Three operands in one pass, each sum rounded on its own: the same bits as three passes in half the time. */
function sumThreeFloat32(accumulator: Float32Array, blocks: readonly HostBuffer[], rank: number): void {
  const a = blocks[rank] as Float32Array;
  const b = blocks[rank + 1] as Float32Array;
  const c = blocks[rank + 2] as Float32Array;
  const { length } = accumulator;
  let i = 0;
  for (; i + 4 <= length; i += 4) {
    accumulator[i] =
      Math.fround(Math.fround((accumulator[i] as number) + (a[i] as number)) + (b[i] as number)) + (c[i] as number);
    accumulator[i + 1] =
      Math.fround(Math.fround((accumulator[i + 1] as number) + (a[i + 1] as number)) + (b[i + 1] as number)) +
      (c[i + 1] as number);
    accumulator[i + 2] =
      Math.fround(Math.fround((accumulator[i + 2] as number) + (a[i + 2] as number)) + (b[i + 2] as number)) +
      (c[i + 2] as number);
    accumulator[i + 3] =
      Math.fround(Math.fround((accumulator[i + 3] as number) + (a[i + 3] as number)) + (b[i + 3] as number)) +
      (c[i + 3] as number);
  }
  for (; i < length; i++) {
    accumulator[i] =
      Math.fround(Math.fround((accumulator[i] as number) + (a[i] as number)) + (b[i] as number)) + (c[i] as number);
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

function divide(accumulator: NumberArray, divisor: number): void {
  for (let i = 0; i < accumulator.length; i++) accumulator[i] = (accumulator[i] as number) / divisor;
}
