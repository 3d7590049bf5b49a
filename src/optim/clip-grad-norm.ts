import { z } from 'zod';
import { InvalidArgumentError, UnsupportedError } from '../core/errors';
import { parseOptions } from '../core/options';
import { Parameter } from '../nn/parameter';
import { describeTensor } from '../tensor/describe';
import { kernels } from '../tensor/kernels/kernels';
import { floatsOf } from '../tensor/operators/floats';
import type { Storage } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { storeFloats } from './float-buffer';
import { gradientGates } from './gradient-gates';
import { GradientNorm } from './gradient-norm';
import { describeValue, listOf } from './param-group';

export interface ClipGradNormOptions {
  /** p of the p-norm: any number above 0, or Infinity for the largest magnitude. Default 2. */
  readonly normType?: number | undefined;
}

const schema = z.strictObject({ normType: z.union([z.number(), z.literal(Infinity)]).default(2) });

/**
 * Scale gradients, in place, so that their norm, of all of them together as one vector, is at most `maxNorm`.
 *
 * Each is multiplied by min(1, maxNorm / (norm + 1e-6)), rounded to float32. The norm before is returned: a double, with
 * bits that do not depend on the order of the parameters or on how they are cut ([Note: exact sum]). Parameters without
 * a gradient are passed over; no gradient at all gives 0. A NaN gradient gives NaN, and all gradients become NaN;
 * `maxNorm` Infinity only measures. After torch.nn.utils.clip_grad_norm_.
 *
 * Waits for gradients in flight; rejects where one was not synchronised, and under ZeRO, where `optimizer.clipGradNorm`
 * knows the whole.
 * @throws InvalidArgumentError, with no gradient changed
 */
export async function clipGradNorm(
  parameters: Tensor | Iterable<Tensor>,
  maxNorm: number,
  options?: ClipGradNormOptions,
): Promise<number> {
  return clipGradients(listTensors(parameters), maxNorm, options, 'clipGradNorm()');
}

/** `clipGradNorm` under the name of the call that the user wrote. */
export async function clipGradients(
  parameters: readonly Tensor[],
  maxNorm: number,
  options: ClipGradNormOptions | undefined,
  operation: string,
): Promise<number> {
  const norm = startNorm(maxNorm, options, operation);
  parameters.forEach((parameter) => refuseSharded(parameter, operation));
  for (const gate of gradientGates(parameters)) await gate.settle(operation);
  const gradients = parameters.flatMap((parameter) => parameter.grad ?? []);
  for (const gradient of gradients) norm.add(gradient.storage);
  const total = norm.value;
  const coefficient = clipCoefficient(total, maxNorm);
  if (coefficient !== 1) gradients.forEach((gradient) => scaleInPlace(gradient.storage, coefficient));
  return total;
}

/** An empty norm of the kind that `options` asks for. @throws InvalidArgumentError if they, or `maxNorm`, are not valid */
export function startNorm(maxNorm: number, options: ClipGradNormOptions | undefined, operation: string): GradientNorm {
  const { normType } = parseOptions(schema, options, operation);
  if (typeof maxNorm === 'number' && maxNorm >= 0) return new GradientNorm(normType);
  throw new InvalidArgumentError(`${operation}: expected a maxNorm of 0 or more, got ${String(maxNorm)}.`);
}

/** What gradients of norm `norm` are multiplied by: a float32, NaN if the norm is. */
export function clipCoefficient(norm: number, maxNorm: number): number {
  if (maxNorm === Infinity) return 1;
  return Math.fround(Math.min(1, maxNorm / (norm + 1e-6)));
}

/** Multiply all elements by a clipping coefficient. */
export function scaleInPlace(gradient: Storage, coefficient: number): void {
  const values = floatsOf(gradient);
  kernels.scale(values, values, coefficient);
  storeFloats(values, gradient);
}

function listTensors(parameters: Tensor | Iterable<Tensor>): Tensor[] {
  const list = parameters instanceof Tensor ? [parameters] : listOf(parameters, 'clipGradNorm()');
  const wrong = list.findIndex((item) => !(item instanceof Tensor));
  if (wrong < 0) return list as Tensor[];
  throw new InvalidArgumentError(
    `clipGradNorm(): expected a tensor at index ${wrong}, got ${describeValue(list[wrong])}.`,
  );
}

/** The norm of a shard is not the norm of the parameter, and here nobody would add up the others'. */
function refuseSharded(parameter: Tensor, operation: string): void {
  if (!(parameter instanceof Parameter) || parameter.placement === 'replicated') return;
  throw new UnsupportedError(
    `${operation}: this rank holds only a part of ${describeTensor(parameter)}, so the norm over all ranks is not known ` +
      'here. Use the clipGradNorm method of the optimizer that the strategy returned.',
  );
}
