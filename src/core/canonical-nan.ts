/**
 * One NaN for all.
 *
 * [Note: canonical NaN] IEEE 754 leaves open which NaN an operation gives (sign and payload), and the JavaScript engine
 * picks by how it compiled the loop, so two ranks with the same numbers could end with different bits. Every NaN that a
 * reduction computes is therefore written as the quiet NaN with no sign and no payload: 0x7fc00000 in float32,
 * 0x7ff8000000000000 in float64, 0x7e00 in float16, 0x7fc0 in bfloat16. To find the rare block that has one costs an
 * addition an element: the total of numbers is NaN if one of them is. (Also where infinities of both signs meet; then the
 * second look finds none.)
 */

const FLOAT32_NAN = 0x7fc00000;
const FLOAT64_NAN = 0x7ff8000000000000n;

/** NaN if any element is, or perhaps if there are infinities of both signs. */
export function traceOf(values: Float32Array | Float64Array): number {
  return isSingle(values) ? traceOfFloat32(values) : traceOfFloat64(values);
}

/** Two functions, so that the engine sees one array type in each; four chains of additions that do not wait for each other. */
function traceOfFloat32(values: Float32Array): number {
  const { length } = values;
  let total0 = 0;
  let total1 = 0;
  let total2 = 0;
  let total3 = 0;
  let i = 0;
  for (; i + 4 <= length; i += 4) {
    total0 += values[i] as number;
    total1 += values[i + 1] as number;
    total2 += values[i + 2] as number;
    total3 += values[i + 3] as number;
  }
  for (; i < length; i++) total0 += values[i] as number;
  return total0 + total1 + total2 + total3;
}

function traceOfFloat64(values: Float64Array): number {
  const { length } = values;
  let total0 = 0;
  let total1 = 0;
  let i = 0;
  for (; i + 2 <= length; i += 2) {
    total0 += values[i] as number;
    total1 += values[i + 1] as number;
  }
  if (i < length) total0 += values[i] as number;
  return total0 + total1;
}

function isSingle(values: Float32Array | Float64Array): values is Float32Array {
  return values.BYTES_PER_ELEMENT === Float32Array.BYTES_PER_ELEMENT;
}

/** Give every NaN the canonical bits. Through integers, since the engine may pick its own NaN for a number. */
export function makeNaNCanonical(values: Float32Array | Float64Array): void {
  if (isSingle(values)) {
    const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
    for (let i = 0; i < bits.length; i++) if (Number.isNaN(values[i])) bits[i] = FLOAT32_NAN;
  } else {
    const bits = new BigUint64Array(values.buffer, values.byteOffset, values.length);
    for (let i = 0; i < bits.length; i++) if (Number.isNaN(values[i])) bits[i] = FLOAT64_NAN;
  }
}
