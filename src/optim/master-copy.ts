/**
 * Float32 copies of 16-bit parameters.
 *
 * [Note: master copies] An update smaller than half the distance to the next 16-bit number would be lost, so the sum of
 * updates is kept in float32, in the state buffer `master`, and the parameter is that, rounded (Micikevicius et al.,
 * Mixed Precision Training, arXiv 1710.03740, section 3.1). The parameter stays what a program reads and writes: where its
 * bits are not what the master rounds to, somebody changed it (loaded weights, say), and the master starts anew from there,
 * element by element.
 */
import { isHalfDType, type DType } from '../core/dtype';
import { fromBFloat16Bits, fromFloat16Bits, narrowToBFloat16, narrowToFloat16 } from '../core/half';
import { floatsOf } from '../tensor/operators/floats';
import type { Shape } from '../tensor/shape';
import { Storage, withMemoryCategory } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import type { ParameterState } from './parameter-state';

/** The name of the master copy among the state buffers of a 16-bit parameter. */
export const MASTER = 'master';

/** Whether an optimizer keeps a master copy of parameters of this dtype. */
export function needsMaster(dtype: DType): boolean {
  return isHalfDType(dtype);
}

/** The master copy of `parameter`, up to date with it, see [Note: master copies]; made, and counted, at first use. */
export function masterOf(kept: ParameterState, parameter: Storage, shape: Shape): Float32Array {
  const present = followParameter(kept, parameter);
  if (present !== undefined) return present;
  const made = floatsOf(parameter) as Float32Array;
  kept.buffers[MASTER] = withMemoryCategory('optimizer', () => new Tensor({ storage: Storage.of(made), shape }));
  return made;
}

/** Bring the master copy, if there is one, up to date with `parameter`, see [Note: master copies]. @returns it */
export function followParameter(kept: ParameterState, parameter: Storage): Float32Array | undefined {
  const master = kept.buffers[MASTER]?.storage.buffer as Float32Array | undefined;
  if (master !== undefined) takeOverChanges(master, parameter);
  return master;
}

/** Elements of `parameter` that are not what the master rounds to become the master's. */
export function takeOverChanges(master: Float32Array, parameter: Storage): void {
  const isFloat16 = parameter.dtype === 'float16';
  const rounded = new Uint16Array(master.length);
  (isFloat16 ? narrowToFloat16 : narrowToBFloat16)(master, rounded);
  const widen = isFloat16 ? fromFloat16Bits : fromBFloat16Bits;
  const bits = parameter.buffer as Uint16Array;
  for (let i = 0; i < bits.length; i++) if (bits[i] !== rounded[i]) master[i] = widen(bits[i] as number);
}
