/**
 * One step of an optimizer on a run of elements, as numbers that a fused kernel takes; what the optimizers' own loops compute.
 *
 * [Note: numbers near one] 1 - beta1, 1 - beta2 and 1 - keep are to be computed before anything is rounded to float32: there
 * 1 - 0.999 is off by 5e-5 of itself, which is more than the tolerance, and 1 - 1e-5 loses a hundredth of the decay.
 */

/** p = keep * p - stepSize * m / (sqrt(v) * rootScale + eps), where g += penalty * p, and m and v are running averages. */
export interface AdamUpdate {
  readonly kind: 'adam';
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly penalty: number;
  readonly keep: number;
  readonly stepSize: number;
  readonly rootScale: number;
  /** Multiplies the gradient first. */
  readonly gradientScale: number;
}

/** d = g + weightDecay * p; with momentum b = momentum * b + taken * d, and d = b, or d + momentum * b with nesterov; p -= lr * d. */
export interface SGDUpdate {
  readonly kind: 'sgd';
  readonly lr: number;
  readonly momentum: number;
  readonly taken: number;
  readonly weightDecay: number;
  readonly nesterov: boolean;
  readonly gradientScale: number;
}

export type FlatUpdate = AdamUpdate | SGDUpdate;

/**
 * A fused kernel computes in float32 where the optimizers' loops compute in float64 and round once; of one step, relative to
 * the largest of the old value, the new value and the change.
 */
export const FLAT_UPDATE_TOLERANCE = 1e-5;
