/** The 16-bit buffers: Uint16Arrays that know which format their bits are. */
import { InvalidArgumentError } from './errors';
import { narrowToBFloat16, narrowToFloat16, widenBFloat16, widenFloat16 } from './half';

/** Says the dtype of a 16-bit buffer; a registered symbol, so that another copy of the package or realm agrees. */
export const HALF_BRAND = Symbol.for('lockstep.dtype');

export type HalfDType = 'float16' | 'bfloat16';

/** The arguments that a typed array may be built with, less lists of numbers: those would be stored as bits. */
function refuseNumbers(name: string, dtype: HalfDType, first: unknown): void {
  const isLength = typeof first === 'number' || first === undefined;
  const isMemory =
    Object.prototype.toString.call(first) === '[object ArrayBuffer]' ||
    Object.prototype.toString.call(first) === '[object SharedArrayBuffer]';
  const isSameFormat =
    typeof first === 'object' && first !== null && (first as { [HALF_BRAND]?: HalfDType })[HALF_BRAND] === dtype;
  if (isLength || isMemory || isSameFormat) return;
  throw new InvalidArgumentError(
    `new ${name}: expected a length or an ArrayBuffer, got ${Object.prototype.toString.call(first).slice(8, -1)}. ` +
      `Its elements would be stored as bits; use ${name}.from(values) to round numbers, or ${name}.fromBits(bits) for bit patterns.`,
  );
}

function refuseOf(name: string): never {
  throw new InvalidArgumentError(
    `${name}.of would store its arguments as bits; use ${name}.from([...]) to round numbers, or ${name}.fromBits(bits) for bit patterns.`,
  );
}

/** The values, of a 16-bit buffer too: its elements are bits. */
function toFloat32Array(values: ArrayLike<number> | Iterable<number>): Float32Array {
  if (HALF_BRAND in values) return (values as Float16Buffer | BFloat16Buffer).toFloat32();
  return Float32Array.from(values as ArrayLike<number>);
}

/**
 * A buffer of IEEE half-precision numbers: 1 sign, 5 exponent, 10 mantissa bits.
 *
 * Indexing and the inherited `set`, `fill` and `map` act on bit patterns, not on values: write values with
 * `Float16Buffer.from(values)` and read them with `toFloat32()`.
 */
export class Float16Buffer extends Uint16Array {
  constructor(first?: number | ArrayBufferLike | Float16Buffer, byteOffset?: number, length?: number) {
    refuseNumbers('Float16Buffer', 'float16', first);
    super(first as ArrayBuffer, byteOffset, length);
  }

  get [HALF_BRAND](): 'float16' {
    return 'float16';
  }

  /** Round each value to the nearest float16 (ties to even), by way of float32. */
  static override from(values: ArrayLike<number> | Iterable<number>): Float16Buffer {
    const wide = toFloat32Array(values);
    const buffer = new Float16Buffer(wide.length);
    narrowToFloat16(wide, buffer);
    return buffer;
  }

  /** A buffer with these bit patterns. */
  static fromBits(bits: ArrayLike<number>): Float16Buffer {
    const buffer = new Float16Buffer(bits.length);
    buffer.set(bits);
    return buffer;
  }

  /** @throws InvalidArgumentError always: it would store bits */
  static override of(..._values: number[]): Float16Buffer {
    return refuseOf('Float16Buffer');
  }

  /** The values, each exact, in a new array. */
  toFloat32(): Float32Array {
    const wide = new Float32Array(this.length);
    widenFloat16(this, wide);
    return wide;
  }
}

/**
 * A buffer of bfloat16 numbers: the upper half of a float32 (1 sign, 8 exponent, 7 mantissa bits).
 *
 * Indexing and the inherited `set`, `fill` and `map` act on bit patterns, not on values: write values with
 * `BFloat16Buffer.from(values)` and read them with `toFloat32()`.
 */
export class BFloat16Buffer extends Uint16Array {
  constructor(first?: number | ArrayBufferLike | BFloat16Buffer, byteOffset?: number, length?: number) {
    refuseNumbers('BFloat16Buffer', 'bfloat16', first);
    super(first as ArrayBuffer, byteOffset, length);
  }

  get [HALF_BRAND](): 'bfloat16' {
    return 'bfloat16';
  }

  /** Round each value to the nearest bfloat16 (ties to even), by way of float32. */
  static override from(values: ArrayLike<number> | Iterable<number>): BFloat16Buffer {
    const wide = toFloat32Array(values);
    const buffer = new BFloat16Buffer(wide.length);
    narrowToBFloat16(wide, buffer);
    return buffer;
  }

  /** A buffer with these bit patterns. */
  static fromBits(bits: ArrayLike<number>): BFloat16Buffer {
    const buffer = new BFloat16Buffer(bits.length);
    buffer.set(bits);
    return buffer;
  }

  /** @throws InvalidArgumentError always: it would store bits */
  static override of(..._values: number[]): BFloat16Buffer {
    return refuseOf('BFloat16Buffer');
  }

  /** The values, each exact, in a new array. */
  toFloat32(): Float32Array {
    const wide = new Float32Array(this.length);
    widenBFloat16(this, wide);
    return wide;
  }
}
