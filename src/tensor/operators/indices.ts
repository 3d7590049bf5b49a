import { InvalidArgumentError } from '../../core/errors';
import type { Value } from '../value';

/**
 * Class or row indices as an Int32Array.
 * @throws InvalidArgumentError for another dtype than int32 or int64, or an index outside 0..limit-1 (`ignored` excepted,
 *   which becomes -1)
 */
export function indicesOf(what: string, indices: Value, limit: number, ignored?: number): Int32Array {
  const { dtype, buffer } = indices.storage;
  if (dtype !== 'int32' && dtype !== 'int64') {
    throw new InvalidArgumentError(`${what}: expected int32 or int64 indices, got ${dtype}. Use .to('int32').`);
  }
  const checked = new Int32Array(buffer.length);
  for (let i = 0; i < checked.length; i++) {
    const index = Number(buffer[i]);
    if (index === ignored) checked[i] = -1;
    else if (index >= 0 && index < limit) checked[i] = index;
    else {
      throw new InvalidArgumentError(`${what}: index ${index} (at position ${i}) is outside 0 to ${limit - 1}.`);
    }
  }
  return checked;
}
