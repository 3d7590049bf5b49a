/** How messages name a tensor. */
import type { DType } from '../core/dtype';
import { formatShape, type Shape } from './shape';

interface Describable {
  readonly dtype: DType;
  readonly shape: Shape;
  /** Parameters have one. */
  readonly name?: unknown;
}

/** `parameter 'fc1.weight' (float32 [3, 4])`, or `a float32 tensor of shape [3, 4]` where there is no name. */
export function describeTensor(tensor: Describable): string {
  const { name, dtype, shape } = tensor;
  if (typeof name === 'string' && name !== '') return `parameter '${name}' (${dtype} ${formatShape(shape)})`;
  return `a ${dtype} tensor of shape ${formatShape(shape)}`;
}
