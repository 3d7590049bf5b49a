/**
 * The one table of loops over elements. Operators check and plan; kernels only compute, on plain typed arrays.
 *
 * [Note: kernel rules] An element of a result depends on nothing but its operands: not on its position, on the size of
 * the call or on how the work is split. Sums (matrix products, reductions) add in float64, in ascending index order, and
 * round once when they are stored. A faster provider may sum in another order if it keeps the first rule and states its
 * tolerance. 16-bit numbers are widened to float32 before they come here and rounded once afterwards.
 */
import type { BroadcastPlan, ReductionPlan, StridedCopy } from './plans';
import { typescriptKernels } from './typescript-kernels';

/** What floating point kernels compute on. */
export type Floats = Float32Array | Float64Array;

/** Elements that are JavaScript numbers. */
export type Numbers = Floats | Int8Array | Uint8Array | Int32Array;

/** Any elements. */
export type Elements = Numbers | Uint16Array | BigInt64Array;

export type BinaryOp = 'add' | 'sub' | 'mul' | 'div' | 'pow';
export type Comparison = 'eq' | 'ne' | 'gt' | 'ge' | 'lt' | 'le';
export type UnaryOp = 'exp' | 'log' | 'sqrt' | 'abs' | 'tanh' | 'sigmoid' | 'relu' | 'gelu' | 'geluTanh' | 'silu';

/** What the slope of a function is computed from: its argument x, or its value f(x); only that is kept for backward. */
export const SLOPE_SOURCE: Readonly<Record<UnaryOp, 'argument' | 'value'>> = {
  exp: 'value',
  log: 'argument',
  sqrt: 'value',
  abs: 'argument',
  tanh: 'value',
  sigmoid: 'value',
  relu: 'value',
  gelu: 'argument',
  geluTanh: 'argument',
  silu: 'argument',
};

/** A matrix in an array: element (row, column) is at offset + row * rowStride + column * columnStride. */
export interface Matrix {
  readonly data: Floats;
  readonly offset: number;
  readonly rowStride: number;
  readonly columnStride: number;
}

/** An array seen as [outer, length, inner]; the operation goes along `length`. */
export interface Axis {
  readonly outer: number;
  readonly length: number;
  readonly inner: number;
}

export interface MatmulShape {
  readonly rows: number;
  readonly columns: number;
  readonly depth: number;
}

export interface ConvolutionGeometry {
  readonly channels: number;
  readonly height: number;
  readonly width: number;
  readonly kernelHeight: number;
  readonly kernelWidth: number;
  readonly strideHeight: number;
  readonly strideWidth: number;
  readonly paddingHeight: number;
  readonly paddingWidth: number;
  readonly outHeight: number;
  readonly outWidth: number;
}

export interface Affine {
  readonly weight: Floats | undefined;
  readonly bias: Floats | undefined;
}

export interface NormShape {
  readonly rows: number;
  readonly width: number;
  readonly eps: number;
  readonly isCentered: boolean;
}

export interface NormGradients {
  readonly x: Floats | undefined;
  readonly weight: Floats | undefined;
  readonly bias: Floats | undefined;
}

export interface ClassAxis extends Axis {
  readonly labelSmoothing: number;
}

export interface Kernels {
  readonly name: string;

  /** out = a op b. */
  binary(op: BinaryOp, out: Numbers, a: Numbers, b: Numbers, plan: BroadcastPlan): void;
  /** The same on 64-bit integers; add, sub and mul only. */
  binaryBig(op: BinaryOp, out: BigInt64Array, a: BigInt64Array, b: BigInt64Array, plan: BroadcastPlan): void;
  /** out = 1 where a op b, else 0. */
  compare(op: Comparison, out: Uint8Array, a: Elements, b: Elements, plan: BroadcastPlan): void;
  /** out = f(x). */
  unary(op: UnaryOp, out: Floats, x: Floats): void;
  /** out = gradient * f'(x), where `saved` is x or f(x) as SLOPE_SOURCE says. */
  unaryBackward(op: UnaryOp, out: Floats, gradient: Floats, saved: Floats): void;
  /** target += source. */
  accumulate(target: Floats, source: Floats): void;
  /** target = source * factor. */
  scale(target: Floats, source: Floats, factor: number): void;
  /** The same; true if every result, as it is stored, is finite. */
  scaleFinite(target: Floats, source: Floats, factor: number): boolean;
  /** out[i] = condition[i] ? a[i] : 0; with `negate`, the other way round. */
  mask(out: Floats, a: Floats, condition: Uint8Array, negate: boolean): void;

  /** out = a b, `out` row major and dense from `outOffset`; `bias`, if given, is added to every row before rounding. */
  matmul(out: Floats, outOffset: number, a: Matrix, b: Matrix, shape: MatmulShape, bias?: Floats): void;

  /** Sum of x over the reduced dimensions, divided by `divisor`. */
  sum(out: Floats, x: Numbers, plan: ReductionPlan, divisor: number): void;
  /** The same of 64-bit integers; wraps. */
  sumBig(out: BigInt64Array, x: BigInt64Array, plan: ReductionPlan): void;
  /** Largest or smallest element; NaN wins. */
  extreme(op: 'max' | 'min', out: Numbers, x: Numbers, plan: ReductionPlan): void;
  /** Elements equal to the extreme share its gradient equally. */
  extremeBackward(out: Floats, gradient: Floats, x: Floats, y: Floats, plan: ReductionPlan): void;
  /** Index of the first largest element along the axis; NaN is larger than any number. */
  argmax(out: Int32Array, x: Numbers, axis: Axis): void;

  softmax(out: Floats, x: Floats, axis: Axis): void;
  softmaxBackward(out: Floats, gradient: Floats, y: Floats, axis: Axis): void;
  logSoftmax(out: Floats, x: Floats, axis: Axis): void;
  logSoftmaxBackward(out: Floats, gradient: Floats, y: Floats, axis: Axis): void;

  /** out [outer, indices, inner] = the slices of x [outer, length, inner] at `indices`, which are in range. */
  take(out: Elements, x: Elements, indices: Int32Array, axis: Axis): void;
  /** Add each slice of the gradient to where `take` found it, in ascending order of the slices; `out` starts as zeros. */
  takeBackward(out: Floats, gradient: Floats, indices: Int32Array, axis: Axis): void;

  /**
   * Scale each row of x [rows, width] to mean square 1, after taking off its mean if `isCentered`; then times weight, plus
   * bias. `statistics` [rows, 2] gets each row's mean and 1 / sqrt(mean square + eps).
   */
  normalize(out: Floats, statistics: Float64Array, x: Floats, affine: Affine, shape: NormShape): void;
  /** Gradients of x, weight and bias; those that are undefined are left out. */
  normalizeBackward(
    out: NormGradients,
    gradient: Floats,
    x: Floats,
    statistics: Float64Array,
    weight: Floats | undefined,
    shape: NormShape,
  ): void;

  /**
   * losses[i] = smoothed negative log-likelihood of target i; 0 where the target is negative. `logSumExp` gets one number
   * for each target. Classes go along `axis`.
   */
  crossEntropy(
    losses: Float64Array,
    logSumExp: Float64Array,
    logits: Floats,
    targets: Int32Array,
    how: ClassAxis,
  ): void;
  /** out = the gradient of the logits, where `gradient` holds one number for each target. */
  crossEntropyBackward(
    out: Floats,
    gradient: Float64Array,
    logits: Floats,
    logSumExp: Float64Array,
    targets: Int32Array,
    how: ClassAxis,
  ): void;

  /** columns [channels * kernel, outHeight * outWidth] = the patches of one image that the kernel meets. */
  imageToColumns(columns: Floats, image: Floats, imageOffset: number, geometry: ConvolutionGeometry): void;
  /** Add the columns back to the places they came from. */
  columnsToImage(image: Floats, imageOffset: number, columns: Floats, geometry: ConvolutionGeometry): void;

  /** Copy elements between strided views; no overlap. */
  copy(target: Elements, source: Elements, plan: StridedCopy): void;
}

/** The provider in use. */
export const kernels: Kernels = typescriptKernels;
