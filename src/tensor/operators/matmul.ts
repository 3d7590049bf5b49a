/** Matrix products of vectors, matrices and batches of matrices. */
import { InvalidArgumentError } from '../../core/errors';
import { kernels, type Floats, type Matrix } from '../kernels/kernels';
import { broadcastStrides } from '../kernels/plans';
import { broadcastShapes, formatShape, sizeOf, type Shape } from '../shape';
import type { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsOf, requireFloat, requireSameDType } from './floats';
import { sumTo } from './sum-to';

/**
 * A value seen as a batch of matrices. `isTransposed`: read each with rows and columns exchanged. It holds the storage, and
 * not its memory, which may be another one in backward.
 */
interface Operand {
  readonly storage: Storage;
  readonly batch: Shape;
  readonly rows: number;
  readonly columns: number;
  readonly isTransposed: boolean;
}

function operandOf(value: Value, shape: Shape): Operand {
  return {
    storage: value.storage,
    batch: shape.slice(0, -2),
    rows: shape[shape.length - 2] as number,
    columns: shape[shape.length - 1] as number,
    isTransposed: false,
  };
}

function transposed(operand: Operand): Operand {
  return { ...operand, rows: operand.columns, columns: operand.rows, isTransposed: !operand.isTransposed };
}

function matrixAt(data: Floats, { rows, columns, isTransposed }: Operand, index: number): Matrix {
  const rowStride = isTransposed ? 1 : columns;
  const columnStride = isTransposed ? rows : 1;
  return { data, offset: index * rows * columns, rowStride, columnStride };
}

/** The products of all pairs of matrices, at the broadcast batch shape. */
function multiply(out: Floats, a: Operand, b: Operand, batch: Shape): void {
  const shape = { rows: a.rows, columns: b.columns, depth: a.columns };
  const aFloats = floatsOf(a.storage);
  const bFloats = floatsOf(b.storage);
  const aIndex = batchIndices(a.batch, batch);
  const bIndex = batchIndices(b.batch, batch);
  for (let i = 0; i < aIndex.length; i++) {
    const left = matrixAt(aFloats, a, aIndex[i] as number);
    const right = matrixAt(bFloats, b, bIndex[i] as number);
    kernels.matmul(out, i * shape.rows * shape.columns, left, right, shape);
  }
}

/** For each matrix of the result, which matrix of an operand with batch shape `own` takes part. */
function batchIndices(own: Shape, batch: Shape): number[] {
  const strides = broadcastStrides(own, batch);
  let indices = [0];
  batch.forEach((extent, dim) => {
    const stride = strides[dim] as number;
    indices = indices.flatMap((start) => Array.from({ length: extent }, (_unused, i) => start + i * stride));
  });
  return indices;
}

/**
 * The matrix product.
 *
 * Shapes: [n, k] x [k, m] -> [n, m]; leading dimensions are batches and broadcast; a vector on the left is a row, on the
 * right a column, and its dimension is dropped from the result.
 */
export function matmul(a: Value, b: Value): Result {
  requireFloat('matmul', a);
  requireFloat('matmul', b);
  requireSameDType('matmul', a, b);
  if (a.shape.length === 0 || b.shape.length === 0) throw mismatch(a, b, 'a tensor without dimensions is no matrix');
  const aShape = a.shape.length === 1 ? [1, ...a.shape] : foldRows(a.shape, b.shape);
  const bShape = b.shape.length === 1 ? [...b.shape, 1] : b.shape;
  const left = operandOf(a, aShape);
  const right = operandOf(b, bShape);
  if (left.columns !== right.rows) throw mismatch(a, b, `the inner sizes ${left.columns} and ${right.rows} differ`);
  const batch = broadcastShapes(
    left.batch,
    right.batch,
    `matmul of ${formatShape(a.shape)} and ${formatShape(b.shape)}`,
  );
  const outShape = resultShape(a.shape, b.shape, batch);
  const { dtype } = a.storage;
  return {
    output: computeValue(dtype, outShape, (out) => multiply(out, left, right, batch)),
    saves: [a, b],
    backward: (gradient, needs) => {
      const full = operandOf(gradient, [...batch, left.rows, right.columns]);
      const product = (x: Operand, y: Operand, own: Shape, shape: Shape): Value => {
        const whole = computeValue(dtype, [...batch, x.rows, y.columns], (out) => multiply(out, x, y, batch));
        return { storage: sumTo(whole, own).storage, shape };
      };
      return [
        needs[0] === true ? product(full, transposed(right), aShape, a.shape) : undefined,
        needs[1] === true ? product(transposed(left), full, bShape, b.shape) : undefined,
      ];
    },
  };
}

/** With one matrix on the right, all batches on the left are rows of one product. */
function foldRows(aShape: Shape, bShape: Shape): Shape {
  if (bShape.length > 2) return aShape;
  const depth = aShape[aShape.length - 1] as number;
  return [sizeOf(aShape.slice(0, -1)), depth];
}

function resultShape(a: Shape, b: Shape, batch: Shape): Shape {
  const rows = a.length === 1 ? [] : [a[a.length - 2] as number];
  const columns = b.length === 1 ? [] : [b[b.length - 1] as number];
  const leading = b.length <= 2 ? a.slice(0, -2) : batch;
  return Object.freeze([...leading, ...rows, ...columns]);
}

function mismatch(a: Value, b: Value, why: string): InvalidArgumentError {
  return new InvalidArgumentError(
    `matmul: shapes ${formatShape(a.shape)} and ${formatShape(b.shape)} do not multiply: ${why}.`,
  );
}
