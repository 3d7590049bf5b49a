/** The edge between a module in 16 bits and a program in float32. */
import { isHalfDType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { AnyModule } from '../nn/any-module';
import { findHiddenTensor, mapTensors } from '../nn/map-tensors';
import { autocastDType, withAutocast } from '../tensor/autocast-mode';
import { describeTensor } from '../tensor/describe';
import { mul } from '../tensor/operators/arithmetic';
import { applyOperator, type Tensor } from '../tensor/tensor';
import type { Value } from '../tensor/value';
import type { BoundaryScale } from './boundary-scale';
import type { ZeroPrecision } from './zero-options';

/**
 * Run the forward of a module whose parameters are in `precision`: inside autocast, 16-bit outputs converted to float32,
 * and gradients scaled between the outputs and the inputs where there is a `scale` ([Note: boundary scale]). Tensors are
 * found in arrays and plain objects too. In float32 it is just the forward.
 * @throws InvalidArgumentError, where there is a `scale`, for a tensor with a gradient that is elsewhere in inputs or
 *   outputs, unless it is inside `module`
 */
export async function runInPrecision<In extends readonly unknown[], Out>(
  module: AnyModule,
  precision: ZeroPrecision,
  scale: BoundaryScale | undefined,
  input: In,
  forward: (...input: In) => Promise<Out>,
): Promise<Out> {
  if (precision === 'float32') return forward(...input);
  if (scale !== undefined) refuseHidden(input, 'input', module);
  const entered = scale === undefined ? input : mapTensors(input, (tensor) => leaveBackward(tensor, scale));
  const output = await withAutocast(precision, () => forward(...entered));
  if (scale !== undefined) refuseHidden(output, 'output', module);
  return mapTensors(output, (tensor) => enterBackward(tensor, scale));
}

/**
 * Let the wrapped module refuse calls that do not come through the wrapper: outside autocast its 16-bit parameters would
 * meet whatever dtype the program has, or be computed with, in 16 bits, unnoticed.
 * @returns a function that ends it; undefined in float32, where such a call does no harm
 */
export function guardPrecision(module: AnyModule, precision: ZeroPrecision): (() => void) | undefined {
  if (precision === 'float32') return undefined;
  return module.registerForwardPreHook(() => {
    if (autocastDType() === precision) return;
    throw new InvalidArgumentError(
      `forward: the parameters of this module are in ${precision} since zeroWrap, and it was called directly. Call the module that zeroWrap returned, which computes in ${precision} and takes and gives float32.`,
      { op: 'forward' },
    );
  });
}

/** A gradient that crosses the edge unseen would be scaled on one side and not on the other. */
function refuseHidden(value: unknown, side: 'input' | 'output', module: AnyModule): void {
  const hidden = findHiddenTensor(value, ({ requiresGrad }) => requiresGrad, new Set(module.modules()));
  if (hidden === undefined) return;
  const isInput = side === 'input';
  throw new InvalidArgumentError(
    `forward: the ${side} has ${describeTensor(hidden.tensor)} inside a ${hidden.holder}, and its gradient would be wrong: zeroWrap with float16 ${isInput ? 'divides' : 'multiplies'} gradients by the loss scale at the module's ${side}s, where it finds tensors in arrays and plain objects alone. ${isInput ? 'Pass' : 'Return'} it as a tensor, or in one of those; or detach() it, if it needs no gradient.`,
    { op: 'forward' },
  );
}

/** An output of the module: in float32, where backward will enter. */
function enterBackward(output: Tensor, scale: BoundaryScale | undefined): Tensor {
  const wide = isHalfDType(output.dtype) ? output.to('float32') : output;
  if (scale === undefined || !wide.requiresGrad) return wide;
  return passThrough('zeroOutput', wide, () => scale.enter());
}

/** An input of the module: where backward will leave. */
function leaveBackward(input: Tensor, scale: BoundaryScale): Tensor {
  if (!input.requiresGrad) return input;
  return passThrough('zeroInput', input, () => 1 / scale.factor);
}

/** The tensor itself; its gradient is multiplied by what `factor` gives in backward. */
function passThrough(name: string, tensor: Tensor, factor: () => number): Tensor {
  return applyOperator(name, [tensor], (value) => ({
    output: value,
    saves: [],
    backward: (gradient) => [multiplied(gradient, factor())],
  }));
}

function multiplied(gradient: Value, factor: number): Value {
  return factor === 1 ? gradient : mul(gradient, factor).output;
}
