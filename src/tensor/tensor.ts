import { isDType, isFloatDType, type DType, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { Generator } from '../core/generator';
import type { MemoryCategory } from '../core/memory-account';
import { autocastInputs } from './autocast-mode';
import {
  drawnValue,
  fullValue,
  parseRandomOptions,
  parseTensorOptions,
  valueOf,
  wrapBuffer,
  type LeafOptions,
  type RandomOptions,
  type TensorData,
  type TensorOptions,
} from './creation';
import { GradientLeaf } from './gradient-leaf';
import { isGradEnabled, showToObserver } from './gradient-mode';
import { GraphNode, type Edge, type NodeBackward } from './graph';
import type { Comparison, UnaryOp } from './kernels/kernels';
import { add, div, mul, pow, sub, type Operand } from './operators/arithmetic';
import { cast } from './operators/cast';
import { compare, where } from './operators/comparison';
import { matmul } from './operators/matmul';
import { broadcastTo, permute, reshape, slice, transpose } from './operators/rearrange';
import { argmax, extreme, mean, sum, type Dims } from './operators/reductions';
import { logSoftmax, softmax } from './operators/softmax';
import { neg, unary } from './operators/unary';
import { resolveDim, type Shape } from './shape';
import { TensorState } from './tensor-state';
import { trackForTidy } from './tidy';
import type { BackwardFunction, Result, Value } from './value';

/**
 * An array of numbers with a shape and a dtype, contiguous and row major, that remembers how it was computed.
 *
 * Operators return new tensors and leave their operands alone. They broadcast: shapes are aligned at the last dimension,
 * and a size of 1 repeats. Both operands have one dtype; a plain number takes that of the other side.
 */
export class Tensor extends TensorState {
  /**
   * A tensor over the memory of `value` (another tensor, say), which is not copied. For subclasses; others use
   * `Tensor.from` and its like.
   */
  constructor(value: Value, options?: LeafOptions);
  /** @internal */
  constructor(value: Value, options: LeafOptions, edge: Edge | undefined);
  constructor(value: Value, options: LeafOptions = {}, edge?: Edge) {
    super(value, edge);
    if (options.requiresGrad === true) this.requiresGrad = true;
  }

  /** A copy of numbers, nested arrays of numbers, or a typed array (which keeps its dtype unless another is given). */
  static from(data: TensorData, shape?: Shape, options?: TensorOptions): Tensor {
    const { dtype, requiresGrad } = parseTensorOptions(options, 'Tensor.from');
    return created(valueOf(data, shape, dtype), requiresGrad);
  }

  /** A tensor over the memory of `buffer`, not copied: changes show on both sides. Default shape: one dimension. */
  static wrap(buffer: HostBuffer, shape?: Shape, options?: LeafOptions): Tensor {
    const { requiresGrad } = parseTensorOptions(options, 'Tensor.wrap');
    return created(wrapBuffer(buffer, shape, 'Tensor.wrap'), requiresGrad);
  }

  static zeros(shape: Shape, options?: TensorOptions): Tensor {
    return filled('Tensor.zeros', shape, 0, options);
  }

  static ones(shape: Shape, options?: TensorOptions): Tensor {
    return filled('Tensor.ones', shape, 1, options);
  }

  static full(shape: Shape, value: number | bigint, options?: TensorOptions): Tensor {
    return filled('Tensor.full', shape, value, options);
  }

  /** Normally distributed elements, mean 0 and standard deviation 1. */
  static randn(shape: Shape, options?: RandomOptions): Tensor {
    return drawn('Tensor.randn', shape, options, (generator) => generator.nextNormal());
  }

  /** Elements uniform from 0 (inclusive) to 1 (exclusive). */
  static rand(shape: Shape, options?: RandomOptions): Tensor {
    return drawn('Tensor.rand', shape, options, (generator) => generator.nextFloat());
  }

  /** @internal */
  protected override makeLeaf(): GradientLeaf {
    return new GradientLeaf(this, (value) => new Tensor(value));
  }

  /** The same memory as a leaf that requires no gradient. */
  detach(): Tensor {
    return created(this);
  }

  /** A copy, through which gradients flow. */
  clone(): Tensor {
    return applyTo('clone', this, copyValue);
  }

  /** This tensor in another dtype; itself if it has that already. The gradient is cast back. */
  to(dtype: DType): Tensor {
    if (!isDType(dtype)) throw new InvalidArgumentError(`to: ${String(dtype)} is no dtype.`);
    return dtype === this.dtype ? this : applyTo('to', this, (x) => cast(x, dtype));
  }

  add(other: Tensor | number | bigint): Tensor {
    return applyBinary('add', this, other, add);
  }

  sub(other: Tensor | number | bigint): Tensor {
    return applyBinary('sub', this, other, sub);
  }

  mul(other: Tensor | number | bigint): Tensor {
    return applyBinary('mul', this, other, mul);
  }

  div(other: Tensor | number): Tensor {
    return applyBinary('div', this, other, div);
  }

  pow(exponent: Tensor | number): Tensor {
    return applyBinary('pow', this, exponent, pow);
  }

  eq(other: Tensor | number | bigint): Tensor {
    return applyComparison('eq', this, other);
  }

  ne(other: Tensor | number | bigint): Tensor {
    return applyComparison('ne', this, other);
  }

  gt(other: Tensor | number | bigint): Tensor {
    return applyComparison('gt', this, other);
  }

  ge(other: Tensor | number | bigint): Tensor {
    return applyComparison('ge', this, other);
  }

  lt(other: Tensor | number | bigint): Tensor {
    return applyComparison('lt', this, other);
  }

  le(other: Tensor | number | bigint): Tensor {
    return applyComparison('le', this, other);
  }

  neg(): Tensor {
    return applyTo('neg', this, neg);
  }

  exp(): Tensor {
    return applyUnary('exp', this);
  }

  log(): Tensor {
    return applyUnary('log', this);
  }

  sqrt(): Tensor {
    return applyUnary('sqrt', this);
  }

  abs(): Tensor {
    return applyUnary('abs', this);
  }

  tanh(): Tensor {
    return applyUnary('tanh', this);
  }

  sigmoid(): Tensor {
    return applyUnary('sigmoid', this);
  }

  relu(): Tensor {
    return applyUnary('relu', this);
  }

  /** x times the normal distribution function of x ('none'), or its approximation by tanh ('tanh'). */
  gelu(approximate: 'none' | 'tanh' = 'none'): Tensor {
    if (approximate !== 'none' && approximate !== 'tanh') {
      throw new InvalidArgumentError(`gelu: expected 'none' or 'tanh', got '${String(approximate)}'.`);
    }
    return applyUnary(approximate === 'tanh' ? 'geluTanh' : 'gelu', this);
  }

  /** x * sigmoid(x) */
  silu(): Tensor {
    return applyUnary('silu', this);
  }

  /** Matrix product: vectors, matrices, and batches of matrices (leading dimensions broadcast). */
  matmul(other: Tensor): Tensor {
    return applyBinary('matmul', this, other, matmul);
  }

  /** Two dimensions exchanged (copied). */
  transpose(dim0: number, dim1: number): Tensor {
    return applyTo('transpose', this, (x) => transpose(x, dim0, dim1));
  }

  /** Dimension i of the result is dimension order[i] of this tensor (copied). */
  permute(order: readonly number[]): Tensor {
    return applyTo('permute', this, (x) => permute(x, order));
  }

  /** The same elements in another shape, over the same memory; one size may be -1. */
  reshape(...shape: number[] | [Shape]): Tensor {
    const sizes = Array.isArray(shape[0]) ? (shape[0] as Shape) : (shape as number[]);
    return applyTo('reshape', this, (x) => reshape(x, sizes));
  }

  /** A dimension of size 1 put in before `dim`. */
  unsqueeze(dim: number): Tensor {
    const at = resolveDim(dim, this.shape.length + 1, 'unsqueeze');
    return this.reshape(this.shape.toSpliced(at, 0, 1));
  }

  /** The dimension `dim`, of size 1, left out. */
  squeeze(dim: number): Tensor {
    const at = resolveDim(dim, this.shape.length, 'squeeze');
    return this.reshape(this.shape.toSpliced(at, 1));
  }

  /** Repeated along missing dimensions and those of size 1 (copied). */
  broadcastTo(shape: Shape): Tensor {
    return applyTo('broadcastTo', this, (x) => broadcastTo(x, shape));
  }

  /** Elements `start` (inclusive) to `end` (exclusive) along a dimension (copied); negative ones count from the back. */
  slice(dim: number, start: number, end: number): Tensor {
    return applyTo('slice', this, (x) => slice(x, dim, start, end));
  }

  /** Sum over `dims`, by default all; integers give int64. */
  sum(dims?: Dims, keepDim?: boolean): Tensor {
    return applyTo('sum', this, (x) => sum(x, dims, keepDim));
  }

  /** Mean over `dims`, by default all. */
  mean(dims?: Dims, keepDim?: boolean): Tensor {
    return applyTo('mean', this, (x) => mean(x, dims, keepDim));
  }

  /** Largest element over `dims`, by default all. NaN wins; equal elements share the gradient equally. */
  max(dims?: Dims, keepDim?: boolean): Tensor {
    return applyTo('max', this, (x) => extreme('max', x, dims, keepDim));
  }

  /** Smallest element over `dims`, by default all. NaN wins; equal elements share the gradient equally. */
  min(dims?: Dims, keepDim?: boolean): Tensor {
    return applyTo('min', this, (x) => extreme('min', x, dims, keepDim));
  }

  /** Index (int32) of the first largest element along `dim`, by default in the flat tensor. */
  argmax(dim?: number, keepDim?: boolean): Tensor {
    return applyTo('argmax', this, (x) => argmax(x, dim, keepDim));
  }

  softmax(dim: number): Tensor {
    return applyTo('softmax', this, (x) => softmax(x, dim));
  }

  logSoftmax(dim: number): Tensor {
    return applyTo('logSoftmax', this, (x) => logSoftmax(x, dim));
  }

  /** This tensor where `mask` (uint8, broadcasts) is 0, `value` elsewhere. */
  maskedFill(mask: Tensor, value: number): Tensor {
    return applyOperator('maskedFill', [mask, this as Tensor], (condition, x) => where(condition, value, x));
  }
}

/** @throws what the storage was vacated with, for a view of memory that is away */
function created(value: Value, requiresGrad?: boolean, edge?: Edge): Tensor {
  void value.storage.buffer;
  const tensor = new Tensor(value, { requiresGrad }, edge);
  trackForTidy(tensor);
  return tensor;
}

function filled(what: string, shape: Shape, value: number | bigint, options: TensorOptions | undefined): Tensor {
  const { dtype = 'float32', requiresGrad } = parseTensorOptions(options, what);
  return created(fullValue(shape, value, dtype, what), requiresGrad);
}

function drawn(
  what: string,
  shape: Shape,
  options: RandomOptions | undefined,
  draw: (generator: Generator) => number,
): Tensor {
  const parsed = parseRandomOptions(options, what);
  return created(drawnValue(shape, parsed, draw, what), parsed.requiresGrad);
}

function copyValue({ storage, shape }: Value): Result {
  return {
    output: { storage: storage.clone(), shape },
    saves: [],
    backward: isFloatDType(storage.dtype) ? (gradient) => [gradient] : undefined,
  };
}

/** The values of a list of inputs, some of which may be left out. */
type ValuesOf<I extends readonly (Tensor | undefined)[]> = {
  -readonly [K in keyof I]: I[K] extends Tensor ? Value : Value | undefined;
};

/**
 * Apply an operator to the values of `inputs`, cast as `autocast` says, and record it if one of them requires a gradient.
 * @internal
 */
export function applyOperator<const I extends readonly (Tensor | undefined)[]>(
  name: string,
  inputs: I,
  operator: (...values: ValuesOf<I>) => Result,
): Tensor {
  const operands: readonly (Tensor | undefined)[] = autocastInputs(name, inputs);
  const values = operands.map((operand) => operand && { storage: operand.storage, shape: operand.shape });
  const result = recorded(name, operands, operator(...(values as ValuesOf<I>)));
  if (operands !== inputs) releaseCasts(operands, inputs);
  return result;
}

/** Nobody else has seen what autocast made of the inputs; what backward needs of it, the graph holds. */
function releaseCasts(operands: readonly (Tensor | undefined)[], inputs: readonly (Tensor | undefined)[]): void {
  operands.forEach((operand, index) => {
    if (operand !== inputs[index] && operand?.source === undefined) operand?.dispose();
  });
}

/** The result as a tensor, with a node if one of the operands requires a gradient. */
function recorded(
  name: string,
  operands: readonly (Tensor | undefined)[],
  { output, saves, backward }: Result,
): Tensor {
  if (backward === undefined) return created(output);
  if (!isGradEnabled()) {
    showToObserver(operands);
    return created(output);
  }
  const sources = operands.map((operand) => operand?.source);
  if (sources.every((source) => source === undefined)) return created(output);
  const [tensor] = recordNode(new GraphNode(name, sources, saves, firstOutput(backward)), [output]);
  return tensor as Tensor;
}

function firstOutput(backward: BackwardFunction): NodeBackward {
  return (gradients, needs) => {
    const ofInputs = backward(gradients[0] as Value, needs);
    for (const gradient of ofInputs) gradient?.storage.allocation.hold();
    return ofInputs;
  };
}

/**
 * The outputs of a node as tensors.
 * @internal
 */
export function recordNode(node: GraphNode, outputs: readonly Value[]): Tensor[] {
  const tensors = outputs.map((value, output) => created(value, false, { node, output }));
  node.outputs = tensors.map((tensor) => tensor.lease);
  return tensors;
}

function applyTo(name: string, x: Tensor, operator: (x: Value) => Result): Tensor {
  return applyOperator(name, [x], operator);
}

function applyBinary<B extends Tensor | number | bigint>(
  name: string,
  a: Tensor,
  b: B,
  operator: (a: Value, b: B extends Tensor ? Value : Operand) => Result,
): Tensor {
  type Right = B extends Tensor ? Value : Operand;
  if (b instanceof Tensor) return applyOperator(name, [a, b], (x, y) => operator(x, y as Right));
  return applyOperator(name, [a], (x) => operator(x, b as Operand as Right));
}

function applyComparison(name: Comparison, a: Tensor, b: Tensor | number | bigint): Tensor {
  if (b instanceof Tensor) return applyOperator(name, [a, b], (x, y) => compare(name, x, y));
  return applyOperator(name, [a], (x) => compare(name, x, b));
}

function applyUnary(name: UnaryOp, x: Tensor): Tensor {
  return applyOperator(name, [x], (value) => unary(name, value));
}

/**
 * Let `owner`, which shares the memory of `from`, hold it in the account from now on, under `category`; `from` stays usable
 * and holds nothing.
 * @internal
 */
export function adoptMemory(owner: Tensor, from: Tensor, category: MemoryCategory): void {
  owner.storage.allocation.moveTo(category);
  if (from !== owner) from.lease.release();
}
