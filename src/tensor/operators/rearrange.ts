/** Operators that move elements and compute nothing; any dtype. */
import { InvalidArgumentError } from '../../core/errors';
import { kernels } from '../kernels/kernels';
import { broadcastStrides, planCopy } from '../kernels/plans';
import {
  broadcastShapes,
  formatShape,
  isSameShape,
  resolveDim,
  resolveReshape,
  sizeOf,
  stridesOf,
  type Shape,
} from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { requireSameDType, zerosValue } from './floats';
import { sumTo } from './sum-to';

interface Place {
  readonly offset: number;
  readonly strides: readonly number[];
}

function copyElements(target: Value, to: Place, source: Value, from: Place, sizes: Shape): void {
  const plan = planCopy(sizes, to, from);
  if (plan !== undefined) kernels.copy(target.storage.buffer, source.storage.buffer, plan);
}

function denseAt(shape: Shape): Place {
  return { offset: 0, strides: stridesOf(shape) };
}

/** New memory of `shape` filled from places of `source`. */
function gatherFrom(source: Value, from: Place, shape: Shape): Value {
  const output = { storage: Storage.allocate(source.storage.dtype, sizeOf(shape)), shape };
  copyElements(output, denseAt(shape), source, from, shape);
  return output;
}

/** The same elements under another shape; shares memory. */
export function reshape(x: Value, shape: readonly number[]): Result {
  return {
    output: { storage: x.storage, shape: resolveReshape(x.shape, shape) },
    saves: [],
    backward: (gradient) => [{ storage: gradient.storage, shape: x.shape }],
  };
}

/** Dimension i of the result is dimension order[i] of x. */
export function permute(x: Value, order: readonly number[]): Result {
  const rank = x.shape.length;
  const dims = order.map((dim) => resolveDim(dim, rank, 'permute'));
  if (new Set(dims).size !== rank || dims.length !== rank) {
    throw new InvalidArgumentError(
      `permute: expected each of the ${rank} dimensions of ${formatShape(x.shape)} once, got [${order.join(', ')}].`,
    );
  }
  const strides = stridesOf(x.shape);
  const shape = Object.freeze(dims.map((dim) => x.shape[dim] as number));
  const inverse = dims.map((_dim, index) => dims.indexOf(index));
  return {
    output: gatherFrom(x, { offset: 0, strides: dims.map((dim) => strides[dim] as number) }, shape),
    saves: [],
    backward: (gradient) => [permute(gradient, inverse).output],
  };
}

/** x with two dimensions exchanged. */
export function transpose(x: Value, dim0: number, dim1: number): Result {
  const rank = x.shape.length;
  const first = resolveDim(dim0, rank, 'transpose');
  const second = resolveDim(dim1, rank, 'transpose');
  const order = x.shape.map((_extent, dim) => (dim === first ? second : dim === second ? first : dim));
  return permute(x, order);
}

/** x repeated along missing dimensions and those of size 1. */
export function broadcastTo(x: Value, shape: Shape): Result {
  if (!isSameShape(broadcastShapes(x.shape, shape, 'broadcastTo'), shape)) {
    throw new InvalidArgumentError(`broadcastTo: ${formatShape(x.shape)} does not broadcast to ${formatShape(shape)}.`);
  }
  return {
    output: gatherFrom(x, { offset: 0, strides: broadcastStrides(x.shape, shape) }, shape),
    saves: [],
    backward: (gradient) => {
      const reduced = sumTo(gradient, x.shape);
      return [reduced];
    },
  };
}

/** Elements start (inclusive) to end (exclusive) along a dimension; negative ones count from the back. */
export function slice(x: Value, dim: number, start: number, end: number): Result {
  const axis = resolveDim(dim, x.shape.length, 'slice');
  const extent = x.shape[axis] as number;
  const first = start < 0 ? start + extent : start;
  const last = end < 0 ? end + extent : end;
  if (!Number.isInteger(start) || !Number.isInteger(end) || first < 0 || last > extent || first > last) {
    throw new InvalidArgumentError(
      `slice: [${start}, ${end}) is not a range of dimension ${axis}, which has ${extent} elements (shape ${formatShape(x.shape)}).`,
    );
  }
  const shape = Object.freeze(x.shape.map((size, d) => (d === axis ? last - first : size)));
  const strides = stridesOf(x.shape);
  const place = { offset: first * (strides[axis] as number), strides };
  return {
    output: gatherFrom(x, place, shape),
    saves: [],
    backward: (gradient) => {
      const whole = zerosValue(x.storage.dtype, x.shape);
      copyElements(whole, place, gradient, denseAt(shape), shape);
      return [whole];
    },
  };
}

/** The values one after the other along a dimension. */
export function concat(values: readonly Value[], dim: number): Result {
  const first = values[0];
  if (first === undefined) throw new InvalidArgumentError('concat: expected at least one tensor, got none.');
  const axis = resolveDim(dim, first.shape.length, 'concat');
  let total = 0;
  for (const value of values) {
    requireSameDType('concat', first, value);
    const fits =
      value.shape.length === first.shape.length &&
      value.shape.every((extent, d) => d === axis || extent === first.shape[d]);
    if (!fits) {
      throw new InvalidArgumentError(
        `concat: shapes ${formatShape(first.shape)} and ${formatShape(value.shape)} differ beside dimension ${axis}.`,
      );
    }
    total += value.shape[axis] as number;
  }
  const shape = Object.freeze(first.shape.map((extent, d) => (d === axis ? total : extent)));
  const strides = stridesOf(shape);
  const output = { storage: Storage.allocate(first.storage.dtype, sizeOf(shape)), shape };
  const places: Place[] = [];
  let start = 0;
  for (const value of values) {
    const place = { offset: start * (strides[axis] as number), strides };
    copyElements(output, place, value, denseAt(value.shape), value.shape);
    places.push(place);
    start += value.shape[axis] as number;
  }
  const shapes = values.map((value) => value.shape);
  return {
    output,
    saves: [],
    backward: (gradient, needs) =>
      shapes.map((own, index) =>
        needs[index] === true ? gatherFrom(gradient, places[index] as Place, own) : undefined,
      ),
  };
}
