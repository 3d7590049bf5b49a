/**
 * Conversion between float32 and the 16-bit formats, on bit patterns.
 *
 * To 16 bits rounds to nearest, ties to even; NaN stays NaN, infinities, signed zeros and subnormals are kept. A
 * JavaScript number is rounded to float32 first, as torch does. IEEE 754-2019 sections 3.6 and 4.3.1.
 */

const scratchFloat = new Float32Array(1);
const scratchBits = new Uint32Array(scratchFloat.buffer);

const FLOAT32_INFINITY = 0x7f800000;

/** float32 bits to float16 bits. */
export function float32BitsToFloat16(bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x47800000) {
    // 65536 or more, infinity or NaN; 65520..65535 round up to infinity by the addition below
    if (magnitude > FLOAT32_INFINITY) return sign | 0x7e00;
    return sign | 0x7c00;
  }
  if (magnitude >= 0x38800000) {
    // a normal float16: rebias the exponent by 112 and round the 13 lost bits, carrying into the exponent
    const rebased = magnitude - 0x38000000;
    return sign | ((rebased + 0x0fff + ((rebased >>> 13) & 1)) >>> 13);
  }
  if (magnitude < 0x33000000) return sign; // below half the smallest subnormal
  // a subnormal float16 counts units of 2^-24
  const shift = 126 - (magnitude >>> 23);
  const mantissa = (magnitude & 0x7fffff) | 0x800000;
  const quotient = mantissa >>> shift;
  const rest = mantissa & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  const roundUp = rest > half || (rest === half && (quotient & 1) === 1);
  return sign | (quotient + (roundUp ? 1 : 0));
}

/** float32 bits to bfloat16 bits. */
export function float32BitsToBFloat16(bits: number): number {
  if ((bits & 0x7fffffff) > FLOAT32_INFINITY) return ((bits >>> 16) & 0x8000) | 0x7fc0;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** float16 bits to float32 bits. */
export function float16BitsToFloat32Bits(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >>> 10) & 0x1f;
  const mantissa = half & 0x3ff;
  if (exponent === 0x1f) return (sign | FLOAT32_INFINITY | (mantissa << 13)) >>> 0;
  if (exponent !== 0) return (sign | ((exponent + 112) << 23) | (mantissa << 13)) >>> 0;
  if (mantissa === 0) return sign >>> 0;
  const leading = Math.clz32(mantissa) - 21; // how far to shift the highest set bit up to the implicit one
  return (sign | ((113 - leading) << 23) | (((mantissa << leading) & 0x3ff) << 13)) >>> 0;
}

/** Round a number to the float16 nearest to it, as bits. */
export function toFloat16Bits(value: number): number {
  scratchFloat[0] = value;
  return float32BitsToFloat16(scratchBits[0] as number);
}

/** Round a number to the bfloat16 nearest to it, as bits. */
export function toBFloat16Bits(value: number): number {
  scratchFloat[0] = value;
  return float32BitsToBFloat16(scratchBits[0] as number);
}

/** The value of float16 bits. */
export function fromFloat16Bits(half: number): number {
  scratchBits[0] = float16BitsToFloat32Bits(half);
  return scratchFloat[0] as number;
}

/** The value of bfloat16 bits. */
export function fromBFloat16Bits(half: number): number {
  scratchBits[0] = half << 16;
  return scratchFloat[0] as number;
}

let float16Table: Float32Array | undefined;

/** The values of all 65,536 float16 patterns, made at first use: a look-up is twice as fast as the arithmetic. */
function float16Values(): Float32Array {
  if (float16Table === undefined) {
    const bits = new Uint32Array(65536);
    for (let half = 0; half < 65536; half++) bits[half] = float16BitsToFloat32Bits(half);
    float16Table = new Float32Array(bits.buffer);
  }
  return float16Table;
}

/** Widen `source` (float16 bits) into `target`; both have the same length. */
export function widenFloat16(source: Uint16Array, target: Float32Array): void {
  const table = float16Values();
  for (let i = 0; i < source.length; i++) target[i] = table[source[i] as number] as number;
}

/** Widen `source` (bfloat16 bits) into `target`; both have the same length. */
export function widenBFloat16(source: Uint16Array, target: Float32Array): void {
  const bits = new Uint32Array(target.buffer, target.byteOffset, target.length);
  for (let i = 0; i < source.length; i++) bits[i] = (source[i] as number) << 16;
}

/** Round `source` into `target` (float16 bits); both have the same length. */
export function narrowToFloat16(source: Float32Array, target: Uint16Array): void {
  const bits = new Uint32Array(source.buffer, source.byteOffset, source.length);
  for (let i = 0; i < source.length; i++) target[i] = float32BitsToFloat16(bits[i] as number);
}

/** Round `source` into `target` (bfloat16 bits); both have the same length. */
export function narrowToBFloat16(source: Float32Array, target: Uint16Array): void {
  const bits = new Uint32Array(source.buffer, source.byteOffset, source.length);
  for (let i = 0; i < source.length; i++) target[i] = float32BitsToBFloat16(bits[i] as number);
}
