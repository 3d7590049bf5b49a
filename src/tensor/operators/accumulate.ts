import type { Storage } from '../storage';
import { kernels } from '../kernels/kernels';
import type { Value } from '../value';
import { add } from './arithmetic';
import { floatsOf } from './floats';
import { narrowToBFloat16, narrowToFloat16 } from '../../core/half';

/** target += source, in place; both floating point, of one length. 16-bit targets add in float32 and round once. */
export function addInto(target: Storage, source: Storage): void {
  const sum = floatsOf(target);
  kernels.accumulate(sum, floatsOf(source));
  if (target.dtype === 'float16') narrowToFloat16(sum as Float32Array, target.buffer as Uint16Array);
  if (target.dtype === 'bfloat16') narrowToBFloat16(sum as Float32Array, target.buffer as Uint16Array);
}

/** The sum of what was there and what comes in, in memory of its own unless it is the first; the holds pass to the sum. */
export function sumGradients(present: Value | undefined, incoming: Value): Value {
  if (present === undefined) return incoming;
  if (present.storage.allocation.holders === 1) {
    addInto(present.storage, incoming.storage);
    incoming.storage.allocation.release();
    return present;
  }
  const sum = add(present, incoming).output;
  sum.storage.allocation.hold();
  present.storage.allocation.release();
  incoming.storage.allocation.release();
  return sum;
}
