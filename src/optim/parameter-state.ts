import type { DType } from '../core/dtype';
import type { Shape } from '../tensor/shape';
import { withMemoryCategory } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';

/** What an optimizer keeps about one parameter. */
export interface ParameterState {
  /** Updates so far. */
  step: number;
  /**
   * By name, of the parameter's shape; float32 for 16-bit parameters, else of the parameter's dtype. For a 16-bit parameter
   * `master` is its value in float32, see [Note: master copies].
   */
  readonly buffers: Record<string, Tensor>;
}

export function emptyParameterState(): ParameterState {
  return { step: 0, buffers: {} };
}

/** The dtype of the buffers kept for a parameter of a dtype. */
export function stateDTypeOf(parameterDType: DType): DType {
  return parameterDType === 'float64' ? 'float64' : 'float32';
}

/** The named buffer; made of zeros, and counted as optimizer memory, if there is none. */
export function stateBuffer(state: ParameterState, name: string, parameterDType: DType, shape: Shape): Tensor {
  return (state.buffers[name] ??= withMemoryCategory('optimizer', () => {
    return keep(Tensor.zeros(shape, { dtype: stateDTypeOf(parameterDType) }));
  }));
}
