/** Sums, largest and smallest elements. */
import type { Axis, Floats, Numbers } from './kernels';
import type { ReductionPlan } from './plans';
import { eachRow } from './rows';

export function sum(out: Floats, x: Numbers, plan: ReductionPlan, divisor: number): void {
  const totals = new Float64Array(out.length);
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const step = plan.outStrides[last] as number;
  let xAt = 0;
  eachRow(plan.sizes, plan.outStrides, plan.outStrides, (outAt) => {
    if (step === 0) {
      let total = totals[outAt] as number;
      for (let i = 0; i < count; i++) total += x[xAt + i] as number;
      totals[outAt] = total;
    } else {
      for (let i = 0; i < count; i++) {
        totals[outAt + i * step] = (totals[outAt + i * step] as number) + (x[xAt + i] as number);
      }
    }
    xAt += count;
  });
  for (let i = 0; i < out.length; i++) out[i] = (totals[i] as number) / divisor;
}

export function sumBig(out: BigInt64Array, x: BigInt64Array, plan: ReductionPlan): void {
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const step = plan.outStrides[last] as number;
  let xAt = 0;
  out.fill(0n);
  eachRow(plan.sizes, plan.outStrides, plan.outStrides, (outAt) => {
    for (let i = 0; i < count; i++) {
      const at = outAt + i * step;
      out[at] = (out[at] as bigint) + (x[xAt++] as bigint);
    }
  });
}

export function extreme(op: 'max' | 'min', out: Numbers, x: Numbers, plan: ReductionPlan): void {
  const pick = op === 'max' ? Math.max : Math.min;
  const isSet = new Uint8Array(out.length);
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const step = plan.outStrides[last] as number;
  let xAt = 0;
  eachRow(plan.sizes, plan.outStrides, plan.outStrides, (outAt) => {
    for (let i = 0; i < count; i++) {
      const at = outAt + i * step;
      const element = x[xAt++] as number;
      out[at] = isSet[at] === 1 ? pick(out[at] as number, element) : element;
      isSet[at] = 1;
    }
  });
}

export function extremeBackward(out: Floats, gradient: Floats, x: Floats, y: Floats, plan: ReductionPlan): void {
  const ties = new Float64Array(gradient.length);
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const step = plan.outStrides[last] as number;
  const isExtreme = (xAt: number, at: number): boolean => Object.is(x[xAt], y[at]) || x[xAt] === y[at];
  let xAt = 0;
  eachRow(plan.sizes, plan.outStrides, plan.outStrides, (outAt) => {
    for (let i = 0; i < count; i++, xAt++) {
      const at = outAt + i * step;
      if (isExtreme(xAt, at)) ties[at] = (ties[at] as number) + 1;
    }
  });
  xAt = 0;
  eachRow(plan.sizes, plan.outStrides, plan.outStrides, (outAt) => {
    for (let i = 0; i < count; i++, xAt++) {
      const at = outAt + i * step;
      out[xAt] = isExtreme(xAt, at) ? (gradient[at] as number) / (ties[at] as number) : 0;
    }
  });
}

export function argmax(out: Int32Array, x: Numbers, { outer, length, inner }: Axis): void {
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      const start = o * length * inner + i;
      let best = 0;
      let largest = x[start] as number;
      for (let k = 1; k < length && !Number.isNaN(largest); k++) {
        const element = x[start + k * inner] as number;
        if (element > largest || Number.isNaN(element)) {
          largest = element;
          best = k;
        }
      }
      out[o * inner + i] = best;
    }
  }
}
