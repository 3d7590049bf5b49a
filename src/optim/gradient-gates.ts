import type { GradientGate } from '../tensor/gradient-leaf';
import type { Tensor } from '../tensor/tensor';

/**
 * The gates of the parameters, each once. Await `settle` of all before gradients are read:
 *
 *     for (const gate of gradientGates(parameters)) await gate.settle('optimizer.step()');
 *
 * Where there is none, nothing is awaited, and the work is done before the call returns.
 */
export function gradientGates(parameters: readonly Tensor[]): readonly GradientGate[] {
  return [...new Set(parameters.flatMap((parameter) => parameter.gradientGate ?? []))];
}
