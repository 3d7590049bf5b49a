/**
 * Call `visit` for each row (a run along the last dimension), in row-major order, with the place of the row's first
 * element in two operands.
 */
export function eachRow(
  sizes: readonly number[],
  aStrides: readonly number[],
  bStrides: readonly number[],
  visit: (aOffset: number, bOffset: number) => void,
): void {
  const outer = sizes.length - 1;
  if (sizes.includes(0)) return;
  const position = new Array<number>(outer).fill(0);
  let aOffset = 0;
  let bOffset = 0;
  for (;;) {
    visit(aOffset, bOffset);
    let dim = outer - 1;
    for (; dim >= 0; dim--) {
      aOffset += aStrides[dim] as number;
      bOffset += bStrides[dim] as number;
      const next = (position[dim] as number) + 1;
      if (next < (sizes[dim] as number)) {
        position[dim] = next;
        break;
      }
      aOffset -= (aStrides[dim] as number) * next;
      bOffset -= (bStrides[dim] as number) * next;
      position[dim] = 0;
    }
    if (dim < 0) return;
  }
}
