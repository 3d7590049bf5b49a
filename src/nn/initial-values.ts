/** Parameters with their first values. Every module of this folder makes its parameters here. */
import { InvalidArgumentError } from '../core/errors';
import type { Generator } from '../core/generator';
import { defaultGenerator } from '../core/random';
import { sizeOf, type Shape } from '../tensor/shape';
import { Tensor } from '../tensor/tensor';
import { Parameter } from './parameter';

/** Options of modules that draw random numbers. */
export interface GeneratorOptions {
  /** Where they come from; default: the generator of this context, see `manualSeed`. */
  readonly generator?: Generator | undefined;
}

/** A float32 parameter with values uniform from -bound to bound. */
export function uniformParameter(shape: Shape, bound: number, generator: Generator = defaultGenerator()): Parameter {
  return drawnParameter(shape, () => (2 * generator.nextDouble() - 1) * bound);
}

/** A float32 parameter with normally distributed values, mean 0 and standard deviation 1. */
export function normalParameter(shape: Shape, generator: Generator = defaultGenerator()): Parameter {
  return drawnParameter(shape, () => generator.nextNormal());
}

/** A float32 parameter, every element `value`. */
export function constantParameter(shape: Shape, value: number): Parameter {
  return new Parameter(Tensor.full(shape, value));
}

function drawnParameter(shape: Shape, draw: () => number): Parameter {
  return new Parameter(Tensor.wrap(Float32Array.from({ length: sizeOf(shape) }, draw), shape));
}

/** @throws InvalidArgumentError unless `value` is a whole number above 0 */
export function checkSize(value: unknown, what: string): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0) return value;
  throw new InvalidArgumentError(`${what}: expected a whole number above 0, got ${String(value)}.`);
}
