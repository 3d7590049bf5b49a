/** Cross entropy of class indices, shifted by the largest logit so that nothing overflows. */
import type { ClassAxis, Floats } from './kernels';

export function crossEntropy(
  losses: Float64Array,
  logSumExp: Float64Array,
  logits: Floats,
  targets: Int32Array,
  { length, inner, labelSmoothing }: ClassAxis,
): void {
  for (let i = 0; i < targets.length; i++) {
    const start = Math.floor(i / inner) * length * inner + (i % inner);
    let largest = -Infinity;
    for (let k = 0; k < length; k++) largest = Math.max(largest, logits[start + k * inner] as number);
    let exponentials = 0;
    let total = 0;
    for (let k = 0; k < length; k++) {
      const logit = logits[start + k * inner] as number;
      exponentials += Math.exp(logit - largest);
      total += logit;
    }
    const normalizer = largest + Math.log(exponentials);
    logSumExp[i] = normalizer;
    const target = targets[i] as number;
    if (target < 0) {
      losses[i] = 0;
      continue;
    }
    const likelihood = normalizer - (logits[start + target * inner] as number);
    losses[i] =
      labelSmoothing === 0
        ? likelihood
        : (1 - labelSmoothing) * likelihood + labelSmoothing * (normalizer - total / length);
  }
}

export function crossEntropyBackward(
  out: Floats,
  gradient: Float64Array,
  logits: Floats,
  logSumExp: Float64Array,
  targets: Int32Array,
  { length, inner, labelSmoothing }: ClassAxis,
): void {
  const spread = labelSmoothing / length;
  for (let i = 0; i < targets.length; i++) {
    const target = targets[i] as number;
    if (target < 0) continue; // `out` starts as zeros
    const start = Math.floor(i / inner) * length * inner + (i % inner);
    const slope = gradient[i] as number;
    const normalizer = logSumExp[i] as number;
    for (let k = 0; k < length; k++) {
      const at = start + k * inner;
      const expected = k === target ? 1 - labelSmoothing + spread : spread;
      out[at] = slope * (Math.exp((logits[at] as number) - normalizer) - expected);
    }
  }
}
