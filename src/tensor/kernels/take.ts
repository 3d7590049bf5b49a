/** Slices picked by index along a dimension, and their gradients. */
import type { Axis, Elements, Floats } from './kernels';

export function take(out: Elements, x: Elements, indices: Int32Array, { outer, length, inner }: Axis): void {
  let outAt = 0;
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < indices.length; i++) {
      const from = (o * length + (indices[i] as number)) * inner;
      for (let j = 0; j < inner; j++) out[outAt++] = x[from + j] as never;
    }
  }
}

/** The sums go in the precision of `out`, since the table is large and most of it is not touched. */
export function takeBackward(out: Floats, gradient: Floats, indices: Int32Array, { outer, length, inner }: Axis): void {
  let gradientAt = 0;
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < indices.length; i++) {
      const to = (o * length + (indices[i] as number)) * inner;
      for (let j = 0; j < inner; j++) out[to + j] = (out[to + j] as number) + (gradient[gradientAt++] as number);
    }
  }
}
