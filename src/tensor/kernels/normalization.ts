/** Layer normalisation and its form without centring (RMS norm), row by row. */
import type { Affine, Floats, NormGradients, NormShape } from './kernels';

/** Two passes: one pass by E[x^2] - E[x]^2 loses everything where the mean is large. */
export function normalize(
  out: Floats,
  statistics: Float64Array,
  x: Floats,
  { weight, bias }: Affine,
  { rows, width, eps, isCentered }: NormShape,
): void {
  for (let row = 0; row < rows; row++) {
    const start = row * width;
    let mean = 0;
    if (isCentered) {
      for (let i = 0; i < width; i++) mean += x[start + i] as number;
      mean /= width;
    }
    let squares = 0;
    for (let i = 0; i < width; i++) {
      const centred = (x[start + i] as number) - mean;
      squares += centred * centred;
    }
    const inverse = 1 / Math.sqrt(squares / width + eps);
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = inverse;
    for (let i = 0; i < width; i++) {
      const normal = ((x[start + i] as number) - mean) * inverse;
      out[start + i] =
        (weight === undefined ? normal : normal * (weight[i] as number)) +
        (bias === undefined ? 0 : (bias[i] as number));
    }
  }
}

export function normalizeBackward(
  out: NormGradients,
  gradient: Floats,
  x: Floats,
  statistics: Float64Array,
  weight: Floats | undefined,
  shape: NormShape,
): void {
  if (out.x !== undefined) inputGradient(out.x, gradient, x, statistics, weight, shape);
  const { rows, width } = shape;
  const weightSum = new Float64Array(width);
  const biasSum = new Float64Array(width);
  for (let row = 0; row < rows; row++) {
    const start = row * width;
    const mean = statistics[2 * row] as number;
    const inverse = statistics[2 * row + 1] as number;
    for (let i = 0; i < width; i++) {
      const slope = gradient[start + i] as number;
      weightSum[i] = (weightSum[i] as number) + slope * ((x[start + i] as number) - mean) * inverse;
      biasSum[i] = (biasSum[i] as number) + slope;
    }
  }
  out.weight?.set(weightSum);
  out.bias?.set(biasSum);
}

/** With n the normalised row and h = gradient * weight: (h - mean(h) - n * mean(h * n)) / deviation, row by row. */
function inputGradient(
  out: Floats,
  gradient: Floats,
  x: Floats,
  statistics: Float64Array,
  weight: Floats | undefined,
  { rows, width, isCentered }: NormShape,
): void {
  for (let row = 0; row < rows; row++) {
    const start = row * width;
    const mean = statistics[2 * row] as number;
    const inverse = statistics[2 * row + 1] as number;
    let total = 0;
    let dot = 0;
    for (let i = 0; i < width; i++) {
      const slope = (gradient[start + i] as number) * (weight === undefined ? 1 : (weight[i] as number));
      total += slope;
      dot += slope * ((x[start + i] as number) - mean) * inverse;
    }
    const meanSlope = isCentered ? total / width : 0;
    const meanDot = dot / width;
    for (let i = 0; i < width; i++) {
      const slope = (gradient[start + i] as number) * (weight === undefined ? 1 : (weight[i] as number));
      const normal = ((x[start + i] as number) - mean) * inverse;
      out[start + i] = (slope - meanSlope - normal * meanDot) * inverse;
    }
  }
}
