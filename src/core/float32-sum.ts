/**
 * Sums of float32 buffers, element by element: the hot loops of most reductions.
 *
 * Apart from the loops for all number arrays so that the engine sees one array type here: three times as fast. Several
 * elements a turn nearly double that; each is still added on its own, so the bits are the same. The traced forms also
 * return a total that is NaN if any result is: [Note: canonical NaN].
 */

const { fround } = Math;

/**
 * Add `operands` to `accumulator`, in their order.
 * @param first the first operand to add
 */
export function sumFloat32(accumulator: Float32Array, operands: readonly Float32Array[], first: number): void {
  let next = first;
  for (; next + 2 < operands.length; next += 3) addThree(accumulator, operands, next);
  for (; next < operands.length; next++) addOne(accumulator, operands[next] as Float32Array);
}

/** The same; only the last pass is traced, since what is NaN stays NaN. There must be an operand. */
export function sumFloat32Traced(accumulator: Float32Array, operands: readonly Float32Array[], first: number): number {
  const numOperands = operands.length - first;
  const numLast = numOperands % 3 === 0 ? 3 : 1;
  const last = operands.length - numLast;
  sumFloat32(accumulator, last === first ? [] : operands.slice(0, last), first);
  return numLast === 3
    ? addThreeTraced(accumulator, operands, last)
    : addOneTraced(accumulator, operands[last] as Float32Array);
}

function addOne(accumulator: Float32Array, operand: Float32Array): void {
  const { length } = accumulator;
  const a = accumulator;
  const b = operand;
  let i = 0;
  for (; i + 8 <= length; i += 8) {
    a[i] = (a[i] as number) + (b[i] as number);
    a[i + 1] = (a[i + 1] as number) + (b[i + 1] as number);
    a[i + 2] = (a[i + 2] as number) + (b[i + 2] as number);
    a[i + 3] = (a[i + 3] as number) + (b[i + 3] as number);
    a[i + 4] = (a[i + 4] as number) + (b[i + 4] as number);
    a[i + 5] = (a[i + 5] as number) + (b[i + 5] as number);
    a[i + 6] = (a[i + 6] as number) + (b[i + 6] as number);
    a[i + 7] = (a[i + 7] as number) + (b[i + 7] as number);
  }
  for (; i < length; i++) a[i] = (a[i] as number) + (b[i] as number);
}

function addOneTraced(accumulator: Float32Array, operand: Float32Array): number {
  const { length } = accumulator;
  const a = accumulator;
  const b = operand;
  let total0 = 0; // four chains of additions that do not wait for each other
  let total1 = 0;
  let total2 = 0;
  let total3 = 0;
  let i = 0;
  for (; i + 4 <= length; i += 4) {
    const sum0 = fround((a[i] as number) + (b[i] as number));
    const sum1 = fround((a[i + 1] as number) + (b[i + 1] as number));
    const sum2 = fround((a[i + 2] as number) + (b[i + 2] as number));
    const sum3 = fround((a[i + 3] as number) + (b[i + 3] as number));
    a[i] = sum0;
    a[i + 1] = sum1;
    a[i + 2] = sum2;
    a[i + 3] = sum3;
    total0 += sum0;
    total1 += sum1;
    total2 += sum2;
    total3 += sum3;
  }
  for (; i < length; i++) {
    const sum = fround((a[i] as number) + (b[i] as number));
    a[i] = sum;
    total0 += sum;
  }
  return total0 + total1 + total2 + total3;
}

/** Three operands in one pass, each sum rounded on its own: the same bits as three passes in half the time. */
function addThree(accumulator: Float32Array, operands: readonly Float32Array[], first: number): void {
  const a = operands[first] as Float32Array;
  const b = operands[first + 1] as Float32Array;
  const c = operands[first + 2] as Float32Array;
  const { length } = accumulator;
  let i = 0;
  for (; i + 4 <= length; i += 4) {
    accumulator[i] =
      fround(fround((accumulator[i] as number) + (a[i] as number)) + (b[i] as number)) + (c[i] as number);
    accumulator[i + 1] =
      fround(fround((accumulator[i + 1] as number) + (a[i + 1] as number)) + (b[i + 1] as number)) +
      (c[i + 1] as number);
    accumulator[i + 2] =
      fround(fround((accumulator[i + 2] as number) + (a[i + 2] as number)) + (b[i + 2] as number)) +
      (c[i + 2] as number);
    accumulator[i + 3] =
      fround(fround((accumulator[i + 3] as number) + (a[i + 3] as number)) + (b[i + 3] as number)) +
      (c[i + 3] as number);
  }
  for (; i < length; i++) {
    accumulator[i] =
      fround(fround((accumulator[i] as number) + (a[i] as number)) + (b[i] as number)) + (c[i] as number);
  }
}

function addThreeTraced(accumulator: Float32Array, operands: readonly Float32Array[], first: number): number {
  const a = operands[first] as Float32Array;
  const b = operands[first + 1] as Float32Array;
  const c = operands[first + 2] as Float32Array;
  const { length } = accumulator;
  let total0 = 0;
  let total1 = 0;
  let i = 0;
  for (; i + 2 <= length; i += 2) {
    const sum0 = fround(
      fround(fround((accumulator[i] as number) + (a[i] as number)) + (b[i] as number)) + (c[i] as number),
    );
    const sum1 = fround(
      fround(fround((accumulator[i + 1] as number) + (a[i + 1] as number)) + (b[i + 1] as number)) +
        (c[i + 1] as number),
    );
    accumulator[i] = sum0;
    accumulator[i + 1] = sum1;
    total0 += sum0;
    total1 += sum1;
  }
  for (; i < length; i++) {
    const sum = fround(
      fround(fround((accumulator[i] as number) + (a[i] as number)) + (b[i] as number)) + (c[i] as number),
    );
    accumulator[i] = sum;
    total0 += sum;
  }
  return total0 + total1;
}
