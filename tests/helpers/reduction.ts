/** The reduction of a group's elements from its definition, one element at a time; shares nothing with src/core/reduce. */
import { type DType, isFloatDType } from '../../src/core/dtype';
import type { ReduceOp } from '../../src/core/reduce-op';
import { roundToBFloat16, roundToFloat16 } from './rounding';

type Round = (value: number) => number;

const INTEGER_BITS = { int8: 8, uint8: 8, int32: 32, int64: 64 } as const;

/** What remains of `value` when it is stored in a buffer of this dtype. int64 gives a bigint. */
export function storedValue(dtype: DType, value: number): number | bigint {
  return isFloatDType(dtype) ? storeFloat(dtype)(value) : storeInteger(dtype, BigInt(Math.trunc(value)));
}

/** The reduction of one element per rank, in rank order. */
export function reducedElement(dtype: DType, op: ReduceOp, byRank: readonly (number | bigint)[]): number | bigint {
  if (byRank.length === 1) return byRank[0] as number | bigint;
  if (isFloatDType(dtype)) return reducedFloat(dtype, op, byRank as readonly number[]);
  return reducedInteger(dtype, op, byRank.map(BigInt));
}

function storeFloat(dtype: DType): Round {
  if (dtype === 'float16') return roundToFloat16;
  if (dtype === 'bfloat16') return roundToBFloat16;
  return dtype === 'float32' ? Math.fround : (value) => value;
}

function storeInteger(dtype: DType, exact: bigint): number | bigint {
  const bits = INTEGER_BITS[dtype as keyof typeof INTEGER_BITS];
  const wrapped = dtype === 'uint8' ? BigInt.asUintN(bits, exact) : BigInt.asIntN(bits, exact);
  return dtype === 'int64' ? wrapped : Number(wrapped);
}

function reducedFloat(dtype: DType, op: ReduceOp, byRank: readonly number[]): number {
  const round: Round = dtype === 'float64' ? (value) => value : Math.fround;
  const hasNaN = byRank.some(Number.isNaN);
  switch (op) {
    case 'Min':
      return hasNaN ? NaN : byRank.reduce((a, b) => (b < a ? b : a));
    case 'Max':
      return hasNaN ? NaN : byRank.reduce((a, b) => (b > a ? b : a));
    case 'Product':
      return storeFloat(dtype)(byRank.reduce((a, b) => round(a * b)));
    case 'Sum':
      return storeFloat(dtype)(byRank.reduce((a, b) => round(a + b)));
    case 'Average':
      return storeFloat(dtype)(round(byRank.reduce((a, b) => round(a + b)) / byRank.length));
    default:
      throw new Error(`${op} takes integers only`);
  }
}

/** Exact, then wrapped once: for sums and products that is the same as wrapping at every step. */
function reducedInteger(dtype: DType, op: ReduceOp, byRank: readonly bigint[]): number | bigint {
  const combine: Record<ReduceOp, (a: bigint, b: bigint) => bigint> = {
    Sum: (a, b) => a + b,
    Average: (a, b) => a + b,
    Product: (a, b) => a * b,
    Min: (a, b) => (a < b ? a : b),
    Max: (a, b) => (a > b ? a : b),
    BitAnd: (a, b) => a & b,
    BitOr: (a, b) => a | b,
    BitXor: (a, b) => a ^ b,
  };
  const total = byRank.reduce(combine[op]);
  return storeInteger(dtype, op === 'Average' ? total / BigInt(byRank.length) : total);
}
