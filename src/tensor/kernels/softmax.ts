/** Softmax and its logarithm along an axis, shifted by the largest element so that nothing overflows. */
import type { Axis, Floats } from './kernels';

type Lane = (start: number, step: number, length: number) => void;

function eachLane({ outer, length, inner }: Axis, visit: Lane): void {
  for (let o = 0; o < outer; o++) for (let i = 0; i < inner; i++) visit(o * length * inner + i, inner, length);
}

function largestOf(x: Floats, start: number, step: number, length: number): number {
  let largest = -Infinity;
  for (let k = 0, at = start; k < length; k++, at += step) largest = Math.max(largest, x[at] as number);
  return largest;
}

export function softmax(out: Floats, x: Floats, axis: Axis): void {
  const exponentials = new Float64Array(axis.length);
  eachLane(axis, (start, step, length) => {
    const largest = largestOf(x, start, step, length);
    let total = 0;
    for (let k = 0, at = start; k < length; k++, at += step) {
      total += exponentials[k] = Math.exp((x[at] as number) - largest);
    }
    for (let k = 0, at = start; k < length; k++, at += step) out[at] = (exponentials[k] as number) / total;
  });
}

export function softmaxBackward(out: Floats, gradient: Floats, y: Floats, axis: Axis): void {
  eachLane(axis, (start, step, length) => {
    let dot = 0;
    for (let k = 0, at = start; k < length; k++, at += step) dot += (gradient[at] as number) * (y[at] as number);
    for (let k = 0, at = start; k < length; k++, at += step) {
      out[at] = (y[at] as number) * ((gradient[at] as number) - dot);
    }
  });
}

export function logSoftmax(out: Floats, x: Floats, axis: Axis): void {
  eachLane(axis, (start, step, length) => {
    const largest = largestOf(x, start, step, length);
    let total = 0;
    for (let k = 0, at = start; k < length; k++, at += step) total += Math.exp((x[at] as number) - largest);
    const shift = largest + Math.log(total);
    for (let k = 0, at = start; k < length; k++, at += step) out[at] = (x[at] as number) - shift;
  });
}

export function logSoftmaxBackward(out: Floats, gradient: Floats, y: Floats, axis: Axis): void {
  eachLane(axis, (start, step, length) => {
    let total = 0;
    for (let k = 0, at = start; k < length; k++, at += step) total += gradient[at] as number;
    for (let k = 0, at = start; k < length; k++, at += step) {
      out[at] = (gradient[at] as number) - Math.exp(y[at] as number) * total;
    }
  });
}
