/** Rounding done with numbers instead of bits, so that it shares nothing with what it checks. */

interface Format {
  /** Bits after the leading one. */
  readonly fractionBits: number;
  /** Exponent of the smallest normal number. */
  readonly minExponent: number;
  readonly largest: number;
}

const FLOAT16: Format = { fractionBits: 10, minExponent: -14, largest: 65504 };
const BFLOAT16: Format = { fractionBits: 7, minExponent: -126, largest: (2 - 2 ** -7) * 2 ** 127 };

export const roundToFloat16 = (value: number): number => roundTo(FLOAT16, Math.fround(value));
export const roundToBFloat16 = (value: number): number => roundTo(BFLOAT16, Math.fround(value));

/** The value of float16 bits, from the definition of the format. */
export function float16Value(bits: number): number {
  const sign = bits >= 0x8000 ? -1 : 1;
  const exponent = Math.floor(bits / 1024) % 32;
  const fraction = (bits % 1024) / 1024;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return exponent === 0 ? sign * fraction * 2 ** -14 : sign * (1 + fraction) * 2 ** (exponent - 15);
}

/** The value of bfloat16 bits, from the definition of the format. */
export function bfloat16Value(bits: number): number {
  const sign = bits >= 0x8000 ? -1 : 1;
  const exponent = Math.floor(bits / 128) % 256;
  const fraction = (bits % 128) / 128;
  if (exponent === 255) return fraction === 0 ? sign * Infinity : NaN;
  return exponent === 0 ? sign * fraction * 2 ** -126 : sign * (1 + fraction) * 2 ** (exponent - 127);
}

/** To nearest, ties to even. */
function roundTo(format: Format, value: number): number {
  if (!Number.isFinite(value) || value === 0) return value;
  const magnitude = Math.abs(value);
  const step = 2 ** (Math.max(exponentOf(magnitude), format.minExponent) - format.fractionBits);
  const rounded = roundHalfToEven(magnitude / step) * step;
  return Math.sign(value) * (rounded > format.largest ? Infinity : rounded);
}

/** The whole number e with 2^e <= value < 2^(e + 1). */
function exponentOf(value: number): number {
  let exponent = Math.floor(Math.log2(value)); // may be one off next to a power of two
  if (2 ** exponent > value) exponent--;
  if (2 ** (exponent + 1) <= value) exponent++;
  return exponent;
}

function roundHalfToEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}
