import { floatsOf } from '../tensor/operators/floats';
import type { Shape } from '../tensor/shape';
import type { Storage } from '../tensor/storage';
import { type FloatBuffer, storeFloats } from './float-buffer';
import { masterOf, needsMaster } from './master-copy';
import { type ParameterState, stateBuffer } from './parameter-state';
import type { UpdateRule } from './update-rule';

/** Any run of elements of a parameter: all of it, or the part that one rank updates. */
export interface ParameterSlice {
  /** Changed in place; 16-bit elements are rounded once, from their float32 master. */
  readonly parameter: Storage;
  /** As long, of any floating point dtype; only read. */
  readonly gradient: Storage;
  /** What is kept about these elements; buffers that are missing are made. */
  readonly kept: ParameterState;
  /** The shape of the buffers; default one dimension. */
  readonly shape?: Shape | undefined;
}

/** One update of `slice` by the rule: counts the step, and keeps float32 masters of 16-bit parameters. */
export function updateSlice<Settings>(rule: UpdateRule<Settings>, slice: ParameterSlice, settings: Settings): void {
  const { parameter, gradient, kept } = slice;
  const shape = slice.shape ?? [parameter.length];
  const state: Record<string, FloatBuffer> = {};
  for (const name of rule.stateNames(settings)) {
    state[name] = floatsOf(stateBuffer(kept, name, parameter.dtype, shape).storage);
  }
  const values = needsMaster(parameter.dtype) ? masterOf(kept, parameter, shape) : floatsOf(parameter);
  rule.update({ parameter: values, gradient: floatsOf(gradient), state, step: ++kept.step }, settings);
  storeFloats(values, parameter);
}
