/** Operations on one or two arrays, element by element. */
import { invariant } from '../../core/invariant';
import type { BinaryOp, Comparison, Elements, Floats, Numbers } from './kernels';
import type { BroadcastPlan } from './plans';
import { eachRow } from './rows';

/** One row of a binary operation: `count` elements, from the given places, in steps (the result's step is 1). */
type BinaryRow = (
  out: Numbers,
  outAt: number,
  count: number,
  a: Numbers,
  aAt: number,
  aStep: number,
  b: Numbers,
  bAt: number,
  bStep: number,
) => void;

/* Each operation has a loop of its own, so that the engine compiles it without a call per element. */
const BINARY_ROWS: Readonly<Record<BinaryOp, BinaryRow>> = {
  add(out, outAt, count, a, aAt, aStep, b, bAt, bStep) {
    for (let i = 0; i < count; i++, aAt += aStep, bAt += bStep)
      out[outAt + i] = (a[aAt] as number) + (b[bAt] as number);
  },
  sub(out, outAt, count, a, aAt, aStep, b, bAt, bStep) {
    for (let i = 0; i < count; i++, aAt += aStep, bAt += bStep)
      out[outAt + i] = (a[aAt] as number) - (b[bAt] as number);
  },
  mul(out, outAt, count, a, aAt, aStep, b, bAt, bStep) {
    for (let i = 0; i < count; i++, aAt += aStep, bAt += bStep)
      out[outAt + i] = (a[aAt] as number) * (b[bAt] as number);
  },
  div(out, outAt, count, a, aAt, aStep, b, bAt, bStep) {
    for (let i = 0; i < count; i++, aAt += aStep, bAt += bStep)
      out[outAt + i] = (a[aAt] as number) / (b[bAt] as number);
  },
  pow(out, outAt, count, a, aAt, aStep, b, bAt, bStep) {
    for (let i = 0; i < count; i++, aAt += aStep, bAt += bStep)
      out[outAt + i] = (a[aAt] as number) ** (b[bAt] as number);
  },
};

/** A product of two int32 may need 62 bits, more than a double holds. */
const multiplyInt32: BinaryRow = (out, outAt, count, a, aAt, aStep, b, bAt, bStep) => {
  for (let i = 0; i < count; i++, aAt += aStep, bAt += bStep)
    out[outAt + i] = Math.imul(a[aAt] as number, b[bAt] as number);
};

export function binary(op: BinaryOp, out: Numbers, a: Numbers, b: Numbers, plan: BroadcastPlan): void {
  const isInt32 = Object.prototype.toString.call(out) === '[object Int32Array]';
  const row = op === 'mul' && isInt32 ? multiplyInt32 : BINARY_ROWS[op];
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const aStep = plan.aStrides[last] as number;
  const bStep = plan.bStrides[last] as number;
  let outAt = 0;
  eachRow(plan.sizes, plan.aStrides, plan.bStrides, (aAt, bAt) => {
    row(out, outAt, count, a, aAt, aStep, b, bAt, bStep);
    outAt += count;
  });
}

function combineBig(op: BinaryOp, a: bigint, b: bigint): bigint {
  switch (op) {
    case 'add':
      return a + b;
    case 'sub':
      return a - b;
    case 'mul':
      return a * b;
    case 'div':
    case 'pow':
      return invariant(false, `integers are not taken by ${op}`) as never;
  }
}

/** Storing into a BigInt64Array wraps to 64 bits. */
export function binaryBig(
  op: BinaryOp,
  out: BigInt64Array,
  a: BigInt64Array,
  b: BigInt64Array,
  plan: BroadcastPlan,
): void {
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const aStep = plan.aStrides[last] as number;
  const bStep = plan.bStrides[last] as number;
  let outAt = 0;
  eachRow(plan.sizes, plan.aStrides, plan.bStrides, (aAt, bAt) => {
    for (let i = 0; i < count; i++) {
      out[outAt++] = combineBig(op, a[aAt + i * aStep] as bigint, b[bAt + i * bStep] as bigint);
    }
  });
}

const COMPARISONS: Readonly<Record<Comparison, (a: number | bigint, b: number | bigint) => boolean>> = {
  eq: (a, b) => a === b,
  ne: (a, b) => a !== b,
  gt: (a, b) => a > b,
  ge: (a, b) => a >= b,
  lt: (a, b) => a < b,
  le: (a, b) => a <= b,
};

export function compare(op: Comparison, out: Uint8Array, a: Elements, b: Elements, plan: BroadcastPlan): void {
  const holds = COMPARISONS[op];
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const aStep = plan.aStrides[last] as number;
  const bStep = plan.bStrides[last] as number;
  let outAt = 0;
  eachRow(plan.sizes, plan.aStrides, plan.bStrides, (aAt, bAt) => {
    for (let i = 0; i < count; i++) {
      out[outAt++] = holds(a[aAt + i * aStep] as number | bigint, b[bAt + i * bStep] as number | bigint) ? 1 : 0;
    }
  });
}

/** Apart from `accumulateAny` so that the engine sees one array type here: three times as fast as the shared loop. */
function accumulateFloat32(target: Float32Array, source: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i] = (target[i] as number) + (source[i] as number);
}

function accumulateAny(target: Floats, source: Floats): void {
  for (let i = 0; i < target.length; i++) target[i] = (target[i] as number) + (source[i] as number);
}

export function accumulate(target: Floats, source: Floats): void {
  if (target.BYTES_PER_ELEMENT === 4 && source.BYTES_PER_ELEMENT === 4) {
    accumulateFloat32(target as Float32Array, source as Float32Array);
  } else accumulateAny(target, source);
}

export function scale(target: Floats, source: Floats, factor: number): void {
  for (let i = 0; i < target.length; i++) target[i] = (source[i] as number) * factor;
}

export function scaleFinite(target: Floats, source: Floats, factor: number): boolean {
  let check = 0;
  for (let i = 0; i < target.length; i++) {
    target[i] = (source[i] as number) * factor;
    const stored = target[i] as number; // read back: a float32 may round to infinity
    check += stored - stored; // 0, but NaN for infinities and NaN
  }
  return check === 0;
}

export function mask(out: Floats, a: Floats, condition: Uint8Array, negate: boolean): void {
  for (let i = 0; i < out.length; i++) out[i] = ((condition[i] as number) !== 0) !== negate ? (a[i] as number) : 0;
}
