/** What collectives on the fills of ../helpers/fill must give, by the definition. Kept, since many cases share them. */
import type { DType } from '../../src/core/dtype';
import type { ReduceOp } from '../../src/core/reduce-op';
import { type Fill, fillValue } from '../helpers/fill';
import { reducedElement, storedValue } from '../helpers/reduction';

export type Value = number | bigint;

/** A column of elements by index, longer at every need. */
const columns = new Map<string, Value[]>();

function elements(key: string, start: number, length: number, element: (i: number) => Value): Value[] {
  let column = columns.get(key);
  if (column === undefined) columns.set(key, (column = []));
  for (let i = column.length; i < start + length; i++) column.push(element(i));
  return column.slice(start, start + length);
}

/** Elements `start` to `start + length` of a rank's fill, as stored. */
export function expectedFill(
  size: number,
  dtype: DType,
  fill: Fill,
  rank: number,
  start: number,
  length: number,
): Value[] {
  return elements(`fill ${size} ${dtype} ${fill} ${rank}`, start, length, (i) =>
    storedValue(dtype, fillValue(fill, dtype, size, rank, i)),
  );
}

/** Elements `start` to `start + length` of the reduction of all ranks' fills. */
export function expectedReduction(
  size: number,
  { dtype, op, fill }: { readonly dtype: DType; readonly op: ReduceOp; readonly fill: Fill },
  start: number,
  length: number,
): Value[] {
  return elements(`reduction ${size} ${dtype} ${fill} ${op}`, start, length, (i) => {
    const byRank = Array.from({ length: size }, (_unused, rank) =>
      storedValue(dtype, fillValue(fill, dtype, size, rank, i)),
    );
    return reducedElement(dtype, op, byRank);
  });
}

/** How large the numbers are that the same elements were made of; partial results may be as large, and round accordingly. */
export function expectedMagnitude(
  size: number,
  { dtype, op, fill }: { readonly dtype: DType; readonly op: ReduceOp; readonly fill: Fill },
  start: number,
  length: number,
): number[] {
  const key = `magnitude ${size} ${dtype} ${fill} ${op}`;
  return elements(key, start, length, (i) => {
    const byRank = Array.from({ length: size }, (_unused, rank) =>
      Math.abs(Number(storedValue(dtype, fillValue(fill, dtype, size, rank, i)))),
    );
    return op === 'Product' ? byRank.reduce((a, b) => a * b) : byRank.reduce((a, b) => a + b);
  }) as number[];
}
