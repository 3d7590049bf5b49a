import { narrowToBFloat16, narrowToFloat16 } from '../core/half';
import type { Storage } from '../tensor/storage';

/** Numbers to compute with; 16-bit storage is widened to float32 for it (`floatsOf`) and rounded back (`storeFloats`). */
export type FloatBuffer = Float32Array | Float64Array;

/** Put what `floatsOf(storage)` gave, since changed, back into `storage`; 16-bit storage rounds here, once. */
export function storeFloats(floats: FloatBuffer, storage: Storage): void {
  if (storage.dtype === 'float16') narrowToFloat16(floats as Float32Array, storage.buffer as Uint16Array);
  if (storage.dtype === 'bfloat16') narrowToBFloat16(floats as Float32Array, storage.buffer as Uint16Array);
  storage.markChanged();
}
