/** How a kernel walks its operands: dimensions that can be walked as one are merged, so that inner loops are long. */
import { sizeOf, stridesOf, type Shape } from '../shape';

/** The dimensions of the result, and how far each operand moves along them (0 where it is repeated). */
export interface BroadcastPlan {
  readonly sizes: readonly number[];
  readonly aStrides: readonly number[];
  readonly bStrides: readonly number[];
}

/** The dimensions of the input, and how far the result moves along them (0 where it is reduced). */
export interface ReductionPlan {
  readonly sizes: readonly number[];
  readonly outStrides: readonly number[];
}

/** The same for a copy between two strided places. */
export interface StridedCopy {
  readonly sizes: readonly number[];
  readonly targetOffset: number;
  readonly targetStrides: readonly number[];
  readonly sourceOffset: number;
  readonly sourceStrides: readonly number[];
}

/** Strides of an operand of `shape` over the dimensions of `out`, to which it broadcasts. */
export function broadcastStrides(shape: Shape, out: Shape): number[] {
  const strides = stridesOf(shape);
  const missing = out.length - shape.length;
  return out.map((_extent, dim) => {
    const own = dim - missing;
    return own < 0 || shape[own] === 1 ? 0 : (strides[own] as number);
  });
}

/**
 * Drop dimensions of size 1 and merge neighbours that every operand walks in one stride. There is always at least one
 * dimension left.
 */
export function mergeDimensions(
  sizes: readonly number[],
  strides: readonly (readonly number[])[],
): { sizes: number[]; strides: number[][] } {
  const mergedSizes: number[] = [];
  const mergedStrides: number[][] = strides.map(() => []);
  for (let dim = 0; dim < sizes.length; dim++) {
    const size = sizes[dim] as number;
    if (size === 1) continue;
    const last = mergedSizes.length - 1;
    const joins =
      last >= 0 &&
      strides.every((operand, which) => (mergedStrides[which] as number[])[last] === (operand[dim] as number) * size);
    if (joins) mergedSizes[last] = (mergedSizes[last] as number) * size;
    else mergedSizes.push(size);
    strides.forEach((operand, which) => {
      const merged = mergedStrides[which] as number[];
      merged[mergedSizes.length - 1] = operand[dim] as number;
    });
  }
  if (mergedSizes.length === 0) {
    mergedSizes.push(1);
    for (const merged of mergedStrides) merged.push(0);
  }
  return { sizes: mergedSizes, strides: mergedStrides };
}

export function planBroadcast(out: Shape, a: Shape, b: Shape): BroadcastPlan {
  const merged = mergeDimensions(out, [broadcastStrides(a, out), broadcastStrides(b, out)]);
  return { sizes: merged.sizes, aStrides: merged.strides[0] as number[], bStrides: merged.strides[1] as number[] };
}

/** @param kept the shape of the result with the reduced dimensions kept as 1 */
export function planReduction(shape: Shape, kept: Shape): ReductionPlan {
  const merged = mergeDimensions(shape, [broadcastStrides(kept, shape), stridesOf(shape)]);
  return { sizes: merged.sizes, outStrides: merged.strides[0] as number[] };
}

/** @returns undefined where there is nothing to copy */
export function planCopy(
  sizes: readonly number[],
  target: { readonly offset: number; readonly strides: readonly number[] },
  source: { readonly offset: number; readonly strides: readonly number[] },
): StridedCopy | undefined {
  if (sizeOf(sizes) === 0) return undefined;
  const merged = mergeDimensions(sizes, [target.strides, source.strides]);
  return {
    sizes: merged.sizes,
    targetOffset: target.offset,
    targetStrides: merged.strides[0] as number[],
    sourceOffset: source.offset,
    sourceStrides: merged.strides[1] as number[],
  };
}
