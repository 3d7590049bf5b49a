/** Functions of one variable and their derivatives. */
import { erfc } from './error-function';
import type { Floats, UnaryOp } from './kernels';

const SQRT_HALF = Math.SQRT1_2;
const SQRT_TWO_OVER_PI = Math.sqrt(2 / Math.PI);
const ONE_OVER_SQRT_TWO_PI = 1 / Math.sqrt(2 * Math.PI);
const GELU_TANH_CUBIC = 0.044715;

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

/** x times the standard normal distribution function of x. */
function gelu(x: number): number {
  if (x === -Infinity) return NaN; // -Infinity * 0, as torch has it
  return 0.5 * x * erfc(-x * SQRT_HALF);
}

function geluSlope(x: number): number {
  return 0.5 * erfc(-x * SQRT_HALF) + x * ONE_OVER_SQRT_TWO_PI * Math.exp(-0.5 * x * x);
}

function geluTanh(x: number): number {
  return 0.5 * x * (1 + Math.tanh(SQRT_TWO_OVER_PI * (x + GELU_TANH_CUBIC * x * x * x)));
}

function geluTanhSlope(x: number): number {
  const t = Math.tanh(SQRT_TWO_OVER_PI * (x + GELU_TANH_CUBIC * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_TWO_OVER_PI * (1 + 3 * GELU_TANH_CUBIC * x * x);
}

function siluSlope(x: number): number {
  const s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

interface Activation {
  readonly value: (x: number) => number;
  /** From x or from f(x), see SLOPE_SOURCE. */
  readonly slope: (saved: number) => number;
}

const ACTIVATIONS: Readonly<Record<Exclude<UnaryOp, 'relu'>, Activation>> = {
  exp: { value: Math.exp, slope: (y) => y },
  log: { value: Math.log, slope: (x) => 1 / x },
  sqrt: { value: Math.sqrt, slope: (y) => 0.5 / y },
  abs: { value: Math.abs, slope: Math.sign },
  tanh: { value: Math.tanh, slope: (y) => 1 - y * y },
  sigmoid: { value: sigmoid, slope: (y) => y * (1 - y) },
  gelu: { value: gelu, slope: geluSlope },
  geluTanh: { value: geluTanh, slope: geluTanhSlope },
  silu: { value: (x) => x * sigmoid(x), slope: siluSlope },
};

export function unary(op: UnaryOp, out: Floats, x: Floats): void {
  if (op === 'relu') return relu(out, x);
  const { value } = ACTIVATIONS[op];
  for (let i = 0; i < out.length; i++) out[i] = value(x[i] as number);
}

export function unaryBackward(op: UnaryOp, out: Floats, gradient: Floats, saved: Floats): void {
  if (op === 'relu') return reluBackward(out, gradient, saved);
  const { slope } = ACTIVATIONS[op];
  for (let i = 0; i < out.length; i++) out[i] = (gradient[i] as number) * slope(saved[i] as number);
}

/* The commonest of all, and the only one that a call for each element would slow down several times. */

/** NaN stays NaN. */
function relu(out: Floats, x: Floats): void {
  for (let i = 0; i < out.length; i++) out[i] = Math.max(x[i] as number, 0);
}

function reluBackward(out: Floats, gradient: Floats, y: Floats): void {
  for (let i = 0; i < out.length; i++) out[i] = (y[i] as number) > 0 ? (gradient[i] as number) : 0;
}
