/** A buffer divided among ranks: one number of elements for all, or a list by rank. */
export type Counts = number | readonly number[];

/** Elements of rank `rank`'s part. */
export function partLength(counts: Counts, rank: number): number {
  return typeof counts === 'number' ? counts : (counts[rank] as number);
}

/** Elements before rank `rank`'s part. */
export function partStart(counts: Counts, rank: number): number {
  if (typeof counts === 'number') return counts * rank;
  let start = 0;
  for (let before = 0; before < rank; before++) start += counts[before] as number;
  return start;
}

/** Elements of all parts together. */
export function totalLength(counts: Counts, size: number): number {
  return partStart(counts, size);
}
