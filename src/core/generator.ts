/**
 * Random numbers that are the same on every machine and can be saved.
 *
 * Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011): a block of four 32-bit words is
 * a function of the seed and a counter, so the state is the two of them, and there is nothing to warm up.
 */
import { InvalidArgumentError } from './errors';

/** Everything a Generator knows; JSON-safe. */
export interface GeneratorState {
  readonly seed: number;
  /** Words drawn so far. */
  readonly position: number;
}

const MULTIPLIER_0 = 0xd2511f53;
const MULTIPLIER_1 = 0xcd9e8d57;
const WEYL_0 = 0x9e3779b9;
const WEYL_1 = 0xbb67ae85;
const ROUNDS = 10;
const TWO_32 = 2 ** 32;

export class Generator {
  #seed: number;
  #position = 0;
  readonly #block = new Uint32Array(4);
  #blockIndex = -1;

  /** @param seed a whole number from 0 to 2^53 - 1 */
  constructor(seed: number) {
    this.#seed = checkWhole('seed', seed);
  }

  /** A whole number from 0 to 2^32 - 1. */
  nextUint32(): number {
    const blockIndex = Math.floor(this.#position / 4);
    if (blockIndex !== this.#blockIndex) this.#fillBlock(blockIndex);
    return this.#block[this.#position++ % 4] as number;
  }

  /** A float from 0 (inclusive) to 1 (exclusive), 24 random bits, so that it is exact in float32. */
  nextFloat(): number {
    return (this.nextUint32() >>> 8) / 2 ** 24;
  }

  /** A double from 0 (inclusive) to 1 (exclusive), 53 random bits. */
  nextDouble(): number {
    const high = this.nextUint32() >>> 5;
    const low = this.nextUint32() >>> 6;
    return (high * 2 ** 26 + low) / 2 ** 53;
  }

  /** A whole number from 0 to `limit` - 1, each equally likely. */
  nextBelow(limit: number): number {
    if (!Number.isInteger(limit) || limit < 1 || limit > TWO_32) {
      throw new InvalidArgumentError(`nextBelow: expected a whole number from 1 to 2^32, got ${String(limit)}.`);
    }
    const usable = TWO_32 - (TWO_32 % limit); // refuse the incomplete last round, which would favour small numbers
    for (;;) {
      const word = this.nextUint32();
      if (word < usable) return word % limit;
    }
  }

  /** A normally distributed number, mean 0 and standard deviation 1 (Box and Muller, 1958; takes four words). */
  nextNormal(): number {
    const radius = Math.sqrt(-2 * Math.log(1 - this.nextDouble()));
    return radius * Math.cos(2 * Math.PI * this.nextDouble());
  }

  /** The numbers 0..length-1 in random order (Fisher and Yates). */
  permutation(length: number): number[] {
    const order = Array.from({ length: checkWhole('permutation', length) }, (_unused, index) => index);
    for (let i = length - 1; i > 0; i--) {
      const j = this.nextBelow(i + 1);
      const swapped = order[i] as number;
      order[i] = order[j] as number;
      order[j] = swapped;
    }
    return order;
  }

  /** The state now; `setState` of it on any Generator repeats what follows. */
  getState(): GeneratorState {
    return { seed: this.#seed, position: this.#position };
  }

  setState(state: GeneratorState): void {
    const seed = checkWhole('seed', state.seed);
    const position = checkWhole('position', state.position);
    this.#seed = seed;
    this.#position = position;
    this.#blockIndex = -1;
  }

  /** Philox's ten rounds on the counter; the key is the seed. */
  #fillBlock(blockIndex: number): void {
    let c0 = blockIndex >>> 0;
    let c1 = Math.floor(blockIndex / TWO_32) >>> 0;
    let c2 = 0;
    let c3 = 0;
    let k0 = this.#seed >>> 0;
    let k1 = Math.floor(this.#seed / TWO_32) >>> 0;
    for (let round = 0; round < ROUNDS; round++) {
      const high0 = multiplyHigh(MULTIPLIER_0, c0);
      const low0 = Math.imul(MULTIPLIER_0, c0) >>> 0;
      const high1 = multiplyHigh(MULTIPLIER_1, c2);
      const low1 = Math.imul(MULTIPLIER_1, c2) >>> 0;
      c0 = (high1 ^ c1 ^ k0) >>> 0;
      c1 = low1;
      c2 = (high0 ^ c3 ^ k1) >>> 0;
      c3 = low0;
      k0 = (k0 + WEYL_0) >>> 0;
      k1 = (k1 + WEYL_1) >>> 0;
    }
    this.#block[0] = c0;
    this.#block[1] = c1;
    this.#block[2] = c2;
    this.#block[3] = c3;
    this.#blockIndex = blockIndex;
  }
}

/** The upper 32 bits of the 64-bit product of two 32-bit words. */
function multiplyHigh(a: number, b: number): number {
  const aHigh = a >>> 16;
  const aLow = a & 0xffff;
  const bHigh = b >>> 16;
  const bLow = b & 0xffff;
  const low = aLow * bLow;
  const middle = aHigh * bLow + (low >>> 16);
  const middle2 = aLow * bHigh + (middle % 0x10000);
  return (aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(middle2 / 0x10000)) >>> 0;
}

function checkWhole(what: string, value: number): number {
  if (Number.isSafeInteger(value) && value >= 0) return value;
  throw new InvalidArgumentError(`${what}: expected a whole number from 0 to 2^53 - 1, got ${String(value)}.`);
}
