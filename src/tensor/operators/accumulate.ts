import type { Storage } from '../storage';
import { kernels } from '../kernels/kernels';
import { floatsOf } from './floats';
import { narrowToBFloat16, narrowToFloat16 } from '../../core/half';

/** target += source, in place; both floating point, of one length. 16-bit targets add in float32 and round once. */
export function addInto(target: Storage, source: Storage): void {
  const sum = floatsOf(target);
  kernels.accumulate(sum, floatsOf(source));
  if (target.dtype === 'float16') narrowToFloat16(sum as Float32Array, target.buffer as Uint16Array);
  if (target.dtype === 'bfloat16') narrowToBFloat16(sum as Float32Array, target.buffer as Uint16Array);
}
