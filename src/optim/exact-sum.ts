/**
 * Sums whose bits depend on nothing but the set of numbers that was added.
 *
 * [Note: exact sum] Floating point addition rounds, so a norm summed shard by shard differs from one summed tensor by
 * tensor, and two ways of splitting one model would clip by different coefficients. Here nothing is rounded before the
 * end. A number goes to the bin of its binary exponent, cut in an upper and a lower part that are both whole multiples
 * of a unit of that bin, so that adding them to the bin is exact for 2^25 numbers; before that many, the bins are moved
 * into one big integer. Only `value` rounds, once. After R. Neal, Fast Exact Summation Using Small and Large
 * Superaccumulators (2015), with the cut by addition of a large constant from T. Dekker (1971).
 */
import { dtypeOf } from '../core/dtype';
import { invariant } from '../core/invariant';

/**
 * Bin k takes numbers that are smaller than 2^(k - 1021) and whole multiples of 2^(k - 1075): the doubles whose
 * exponent field is k, and those of k + 1 that have a bit to spare at the low end, as squares of float32 do.
 */
const BINS = 2048;
/** From here on the constant that cuts a number, or a bin, could overflow; such numbers go straight to the total. */
const FIRST_LARGE_BIN = 2000;
/** The upper part is at most 2^28 units of 2^(k - 1049), and a double counts to 2^53. */
const ADDS_BEFORE_FLUSH = 2 ** 25;
/** Adding and subtracting CUTS[k] rounds a number of bin k to a multiple of 2^(k - 1049). */
const CUTS = Float64Array.from({ length: BINS }, (_unused, bin) => 1.5 * 2 ** (bin - 997));

/** Digits of 32 bits that hold any sum of fewer than 2^53 doubles in units of 2^-1074. */
const DIGITS = 68;
const DIGIT_BITS = 32n;

const scratch = new Float64Array(1);
const scratchWords = new Uint32Array(scratch.buffer);
const scratchBits = new BigUint64Array(scratch.buffer);
/** Which word holds sign and exponent: the second one on little-endian machines. */
const HIGH_WORD = new Uint8Array(Uint32Array.of(1).buffer)[0] === 1 ? 1 : 0;

export class ExactSum {
  readonly #high = new Float64Array(BINS);
  readonly #low = new Float64Array(BINS);
  #addsSinceFlush = 0;
  /** What was moved out of the bins, in units of 2^-1074, the smallest double. */
  #total = 0n;
  /** The sum of the infinities and NaNs; 0 if there was none. */
  #special = 0;

  /** Add one number. Infinities and NaN act as in ordinary addition. */
  add(value: number): void {
    this.#reserve(1);
    this.#addFinite(value);
  }

  /**
   * Add the square of every element. Squares of float32 are exact in a double; squares of float64 are rounded to one
   * first, each for itself, so that the sum still depends on nothing but the elements.
   */
  addSquares(values: Float32Array | Float64Array): void {
    const isFloat32 = dtypeOf(values) === 'float32';
    forEachBlock(values, (block) => {
      this.#reserve(block.length);
      if (isFloat32) this.#addSquaresOfFloat32(block as Float32Array);
      else for (let i = 0; i < block.length; i++) this.#addFinite((block[i] as number) * (block[i] as number));
    });
  }

  /** Add |x|^power of every element; each power is rounded to a double first. */
  addPowers(values: Float32Array | Float64Array, power: number): void {
    forEachBlock(values, (block) => {
      this.#reserve(block.length);
      for (let i = 0; i < block.length; i++) {
        const magnitude = Math.abs(block[i] as number);
        this.#addFinite(power === 1 ? magnitude : magnitude ** power);
      }
    });
  }

  /** The double nearest to the sum of everything added so far, ties to even. */
  get value(): number {
    if (this.#special !== 0) return this.#special;
    this.#flush();
    return roundFixedPoint(this.#total);
  }

  /**
   * The sum as numbers that ranks can add element by element, in any order, without rounding: all-reduce them with Sum
   * and give the result to `addDigits` of an empty sum. Exact for up to 2^20 ranks.
   */
  toDigits(): Float64Array {
    this.#flush();
    const digits = new Float64Array(DIGITS + 1);
    const sign = this.#total < 0n ? -1 : 1;
    let rest = this.#total < 0n ? -this.#total : this.#total;
    for (let i = 0; rest !== 0n; i++) {
      invariant(i < DIGITS, 'an exact sum outgrew its digits');
      digits[i] = sign * Number(BigInt.asUintN(32, rest));
      rest >>= DIGIT_BITS;
    }
    digits[DIGITS] = this.#special;
    return digits;
  }

  /** Add a sum given by `toDigits`, or several of them added element by element. */
  addDigits(digits: Float64Array): void {
    const special = digits[DIGITS] as number;
    this.#special += special;
    for (let i = 0; i < DIGITS; i++) this.#total += BigInt(digits[i] as number) << (DIGIT_BITS * BigInt(i));
  }

  /** Make room for `count` more numbers in the bins. */
  #reserve(count: number): void {
    if (this.#addsSinceFlush + count > ADDS_BEFORE_FLUSH) this.#flush();
    this.#addsSinceFlush += count;
  }

  #addFinite(value: number): void {
    scratch[0] = value;
    const exponent = ((scratchWords[HIGH_WORD] as number) >>> 20) & 0x7ff;
    if (exponent >= FIRST_LARGE_BIN) {
      this.#addLarge(value);
      return;
    }
    const bin = exponent === 0 ? 1 : exponent; // subnormals share the unit of the first normal bin
    const cut = CUTS[bin] as number;
    const upper = value + cut - cut;
    (this.#high[bin] as number) += upper;
    (this.#low[bin] as number) += value - upper;
  }

  #addLarge(value: number): void {
    if (Number.isFinite(value)) this.#total += toFixedPoint(value);
    else this.#special += value;
  }

  /** The loop that gradient clipping spends its time in; the exponent is read from the bits of the element. */
  #addSquaresOfFloat32(values: Float32Array): void {
    const bits = new Int32Array(values.buffer, values.byteOffset, values.length);
    const high = this.#high;
    const low = this.#low;
    for (let i = 0; i < values.length; i++) {
      const element = values[i] as number;
      const square = element * element;
      const exponent = ((bits[i] as number) >>> 23) & 0xff;
      if (exponent === 0xff) {
        this.#special += square;
        continue;
      }
      const bin = 2 * exponent + 769; // 2 * (exponent - 127) + 1023
      const cut = CUTS[bin] as number;
      const upper = square + cut - cut;
      (high[bin] as number) += upper;
      (low[bin] as number) += square - upper;
    }
  }

  #flush(): void {
    if (this.#addsSinceFlush === 0) return;
    this.#addsSinceFlush = 0;
    for (let bin = 0; bin < BINS; bin++) {
      if (this.#high[bin] !== 0) this.#total += toFixedPoint(this.#high[bin] as number);
      if (this.#low[bin] !== 0) this.#total += toFixedPoint(this.#low[bin] as number);
    }
    this.#high.fill(0);
    this.#low.fill(0);
  }
}

function forEachBlock<B extends Float32Array | Float64Array>(values: B, visit: (block: B) => void): void {
  for (let start = 0; start < values.length; start += ADDS_BEFORE_FLUSH) {
    visit(values.subarray(start, start + ADDS_BEFORE_FLUSH) as B);
  }
}

/** A finite double as a whole number of 2^-1074. */
function toFixedPoint(value: number): bigint {
  scratch[0] = value;
  const bits = scratchBits[0] as bigint;
  const exponent = (bits >> 52n) & 0x7ffn;
  const mantissa = bits & 0xfffffffffffffn;
  const magnitude = exponent === 0n ? mantissa : (mantissa | 0x10000000000000n) << (exponent - 1n);
  return value < 0 ? -magnitude : magnitude;
}

/** The double nearest to `total` units of 2^-1074: 64 leading bits, the last one set if anything follows, round right. */
function roundFixedPoint(total: bigint): number {
  const magnitude = total < 0n ? -total : total;
  const shift = BigInt(Math.max(0, magnitude.toString(16).length * 4 - 64));
  const leading = magnitude >> shift;
  const rest = magnitude - (leading << shift);
  const rounded = Number(rest === 0n ? leading : leading | 1n) * 2 ** (Number(shift) - 1074);
  return total < 0n ? -rounded : rounded;
}
