import { isHalfDType } from '../core/dtype';
import { kernels } from '../tensor/kernels/kernels';
import { floatsOf } from '../tensor/operators/floats';
import { Storage } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { storeFloats } from './float-buffer';

/**
 * Multiply the gradients of `parameters` by `factor`, in place; 16-bit ones are replaced by float32 ones. Parameters
 * without a gradient are passed over. The gradients are synchronised: see `GradientGate.settle`.
 * @returns whether any of them is NaN or infinite afterwards
 */
export function unscaleGradients(parameters: readonly Tensor[], factor: number): boolean {
  let isFinite = true;
  for (const parameter of parameters) {
    const gradient = parameter.grad;
    if (gradient === undefined) continue;
    const values = floatsOf(gradient.storage);
    isFinite = kernels.scaleFinite(values, values, factor) && isFinite;
    if (isHalfDType(gradient.dtype)) parameter.grad = asGradient(values, gradient);
    else storeFloats(values, gradient.storage);
  }
  return !isFinite;
}

/** The computed elements as a gradient in place of `gradient`. */
function asGradient(values: Float32Array | Float64Array, { shape }: Tensor): Tensor {
  return new Tensor({ storage: Storage.of(values, 'gradients'), shape });
}
