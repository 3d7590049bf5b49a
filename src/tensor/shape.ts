/** Shapes: sizes per dimension, row major, always contiguous. */
import { InvalidArgumentError } from '../core/errors';

/** Sizes of the dimensions, outermost first; [] is a single number. */
export type Shape = readonly number[];

/** Number of elements. */
export function sizeOf(shape: Shape): number {
  let size = 1;
  for (const extent of shape) size *= extent;
  return size;
}

/** `[2, 3]`, as messages print it. */
export function formatShape(shape: Shape): string {
  return `[${shape.join(', ')}]`;
}

export function isSameShape(a: Shape, b: Shape): boolean {
  return a.length === b.length && a.every((extent, dim) => extent === b[dim]);
}

/** Distance in elements between neighbours along each dimension. */
export function stridesOf(shape: Shape): number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    strides[dim] = stride;
    stride *= shape[dim] as number;
  }
  return strides;
}

/**
 * A shape as a caller gave it, copied and frozen.
 * @throws InvalidArgumentError unless it is an array of whole numbers, none negative
 */
export function checkShape(shape: unknown, what: string): Shape {
  if (Array.isArray(shape) && shape.every((extent) => Number.isSafeInteger(extent) && extent >= 0)) {
    return Object.freeze([...(shape as number[])]);
  }
  throw new InvalidArgumentError(
    `${what}: expected a shape, an array of whole numbers such as [2, 3], got ${describeShape(shape)}.`,
  );
}

function describeShape(shape: unknown): string {
  return Array.isArray(shape) ? `[${shape.map(String).join(', ')}]` : `a ${shape === null ? 'null' : typeof shape}`;
}

/**
 * A dimension counted from the front; a negative one counts from the back.
 * @throws InvalidArgumentError if the shape has no such dimension
 */
export function resolveDim(dim: number, rank: number, what: string): number {
  const resolved = dim < 0 ? dim + rank : dim;
  if (Number.isInteger(dim) && resolved >= 0 && resolved < rank) return resolved;
  const range = rank === 0 ? 'a tensor without dimensions has none' : `expected ${-rank} to ${rank - 1}`;
  throw new InvalidArgumentError(`${what}: dimension ${String(dim)} does not exist, ${range}.`);
}

/** The dimensions that a reduction goes over, ascending; all of them where none are named. */
export function resolveDims(dims: number | readonly number[] | undefined, rank: number, what: string): number[] {
  if (dims === undefined) return Array.from({ length: rank }, (_unused, dim) => dim);
  const list = typeof dims === 'number' ? [dims] : dims;
  const resolved = list.map((dim) => resolveDim(dim, rank, what)).sort((a, b) => a - b);
  const twice = resolved.find((dim, index) => dim === resolved[index + 1]);
  if (twice !== undefined) {
    throw new InvalidArgumentError(`${what}: dimension ${twice} is named twice in [${list.join(', ')}].`);
  }
  return resolved;
}

/** The shape left by a reduction over `dims` (ascending). */
export function reducedShape(shape: Shape, dims: readonly number[], keepDim: boolean): Shape {
  return Object.freeze(
    keepDim
      ? shape.map((extent, dim) => (dims.includes(dim) ? 1 : extent))
      : shape.filter((_extent, dim) => !dims.includes(dim)),
  );
}

/**
 * The shape that two shapes broadcast to: aligned at the last dimension, where sizes differ one of them is 1.
 * @throws InvalidArgumentError with both shapes otherwise
 */
export function broadcastShapes(a: Shape, b: Shape, what: string): Shape {
  if (isSameShape(a, b)) return a;
  const rank = Math.max(a.length, b.length);
  const shape = new Array<number>(rank);
  for (let fromEnd = 1; fromEnd <= rank; fromEnd++) {
    const extentA = a[a.length - fromEnd] ?? 1;
    const extentB = b[b.length - fromEnd] ?? 1;
    if (extentA !== extentB && extentA !== 1 && extentB !== 1) {
      throw new InvalidArgumentError(
        `${what}: shapes ${formatShape(a)} and ${formatShape(b)} do not broadcast: sizes ${extentA} and ${extentB} at dimension -${fromEnd} differ and neither is 1.`,
      );
    }
    shape[rank - fromEnd] = extentA === 1 ? extentB : extentA;
  }
  return Object.freeze(shape);
}

/**
 * The shape meant by a reshape of `size` elements, in which one size may be -1.
 * @throws InvalidArgumentError if the elements do not fit
 */
export function resolveReshape(from: Shape, to: readonly number[]): Shape {
  const size = sizeOf(from);
  const unknown = to.indexOf(-1);
  const known = to.reduce((product, extent, dim) => (dim === unknown ? product : product * extent), 1);
  const isValid = to.every((extent, dim) => dim === unknown || (Number.isSafeInteger(extent) && extent >= 0));
  if (isValid && unknown < 0 && known === size) return Object.freeze([...to]);
  if (isValid && unknown >= 0 && known > 0 && size % known === 0) {
    return Object.freeze(to.map((extent, dim) => (dim === unknown ? size / known : extent)));
  }
  throw new InvalidArgumentError(
    `reshape: the ${size} elements of shape ${formatShape(from)} do not fit ${formatShape(to)}. At most one size may be -1.`,
  );
}
