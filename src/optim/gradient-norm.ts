import { InvalidArgumentError } from '../core/errors';
import { floatsOf } from '../tensor/operators/floats';
import type { Storage } from '../tensor/storage';
import { ExactSum } from './exact-sum';
import type { FloatBuffer } from './float-buffer';

/**
 * The p-norm of numbers that arrive in pieces; its bits do not depend on how they were cut in pieces, nor on the order
 * (see [Note: exact sum]), so that ranks that hold shards find the norm that one process finds.
 */
export class GradientNorm {
  readonly normType: number;
  readonly #sum = new ExactSum();
  #largest = 0;

  /**
   * @param normType p: any number above 0; 2 is the Euclidean norm, Infinity the largest magnitude
   * @throws InvalidArgumentError for any other
   */
  constructor(normType: number) {
    if (typeof normType !== 'number' || !(normType > 0)) {
      throw new InvalidArgumentError(
        `normType: expected a number above 0 or Infinity, got ${String(normType)}. The usual norm is 2.`,
      );
    }
    this.normType = normType;
  }

  /** Take in all elements of `storage`, of any floating point dtype; 16-bit ones are widened to float32. */
  add(storage: Storage): void {
    const values = floatsOf(storage);
    if (this.normType === 2) this.#sum.addSquares(values);
    else if (this.normType === Infinity) this.#largest = Math.max(this.#largest, largestMagnitude(values));
    else this.#sum.addPowers(values, this.normType);
  }

  /** The norm of everything so far; NaN if any element was. */
  get value(): number {
    if (this.normType === Infinity) return this.#largest;
    const sum = this.#sum.value;
    return this.normType === 2 ? Math.sqrt(sum) : sum ** (1 / this.normType);
  }

  /**
   * What ranks exchange: all-reduce `values` with `op`, in any order, and give the result to `addParts` of a new norm.
   * The values have the same length on every rank.
   */
  toParts(): { readonly values: Float64Array; readonly op: 'Sum' | 'Max' } {
    if (this.normType === Infinity) return { values: Float64Array.of(this.#largest), op: 'Max' };
    return { values: this.#sum.toDigits(), op: 'Sum' };
  }

  /** Take in the values of `toParts`, this rank's or those of all ranks together. */
  addParts(values: Float64Array): void {
    if (this.normType === Infinity) this.#largest = Math.max(this.#largest, values[0] as number);
    else this.#sum.addDigits(values);
  }
}

/** The largest |x|, 0 where there is none, NaN where one is. */
function largestMagnitude(values: FloatBuffer): number {
  let largest = 0;
  for (let i = 0; i < values.length; i++) largest = Math.max(largest, Math.abs(values[i] as number));
  return largest;
}
