import { isFloatDType, type DType } from './dtype';
import { InvalidArgumentError } from './errors';

/** How a collective combines the ranks' elements. Semantics: [Note: reduction order] in reduce.ts. */
export const ReduceOp = {
  Sum: 'Sum',
  Product: 'Product',
  Min: 'Min',
  Max: 'Max',
  /** Sum divided by the group's size, once, at the end. */
  Average: 'Average',
  BitAnd: 'BitAnd',
  BitOr: 'BitOr',
  BitXor: 'BitXor',
} as const;
export type ReduceOp = (typeof ReduceOp)[keyof typeof ReduceOp];

export function isReduceOp(value: unknown): value is ReduceOp {
  return typeof value === 'string' && Object.hasOwn(ReduceOp, value);
}

export function isBitOp(op: ReduceOp): boolean {
  return op === ReduceOp.BitAnd || op === ReduceOp.BitOr || op === ReduceOp.BitXor;
}

/** @throws InvalidArgumentError for an unknown op, or a bit operation on floating point numbers */
export function checkReduceOp(op: unknown, dtype: DType): ReduceOp {
  if (!isReduceOp(op)) {
    throw new InvalidArgumentError(
      `reduce op: expected one of ${Object.keys(ReduceOp).join(', ')}, got ${String(op)}.`,
    );
  }
  if (isBitOp(op) && isFloatDType(dtype)) {
    throw new InvalidArgumentError(
      `${op} takes integers only, got ${dtype}. Use an int8, uint8, int32 or int64 buffer.`,
    );
  }
  return op;
}
