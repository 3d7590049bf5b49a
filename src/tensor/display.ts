/** Tensors as nested arrays and as text. */
import { inspect, type InspectOptions } from 'node:util';
import { isFloatDType } from '../core/dtype';
import { floatsOf } from './operators/floats';
import { formatShape, type Shape } from './shape';
import type { Value } from './value';

type Nested = number | bigint | Nested[];

/** The elements as numbers (bigints for int64), in row-major order. */
export function elementsOf(value: Value): ArrayLike<number | bigint> {
  const { storage } = value;
  return isFloatDType(storage.dtype) ? floatsOf(storage) : storage.buffer;
}

/** Arrays in arrays as deep as the shape; a single number for shape []. */
export function nestedArray(value: Value): Nested {
  const elements = elementsOf(value);
  let next = 0;
  const build = (dim: number): Nested => {
    if (dim === value.shape.length) return elements[next++] as number | bigint;
    return Array.from({ length: value.shape[dim] as number }, () => build(dim + 1));
  };
  return build(0);
}

/** Along each dimension at most this many elements are printed: the first and the last half of them. */
const PRINTED_EXTENT = 6;

/** `[[1, 2, 3], [4, 5, 6]]`; long dimensions are shortened. */
export function formatElements(value: Value, options: InspectOptions): string {
  const elements = elementsOf(value);
  const format = (dim: number, start: number, size: number): string => {
    if (dim === value.shape.length) return formatElement(elements[start] as number | bigint, options);
    const extent = value.shape[dim] as number;
    const stride = size / extent;
    const parts: string[] = [];
    for (let i = 0; i < extent; i++) {
      if (extent > PRINTED_EXTENT && i === PRINTED_EXTENT / 2) {
        parts.push('...');
        i = extent - PRINTED_EXTENT / 2;
      }
      parts.push(format(dim + 1, start + i * stride, stride));
    }
    return `[${parts.join(', ')}]`;
  };
  return format(0, 0, elements.length);
}

function formatElement(element: number | bigint, options: InspectOptions): string {
  const isLong = typeof element === 'number' && Number.isFinite(element) && element !== 0; // -0 keeps its sign
  const shown = isLong ? Number(element.toPrecision(5)) : element;
  return inspect(shown, { colors: options.colors ?? false });
}

/** `Tensor [2, 3] float32`, the head of a tensor's printed form. */
export function formatHead(className: string, shape: Shape, dtype: string): string {
  return `${className} ${formatShape(shape)} ${dtype}`;
}
