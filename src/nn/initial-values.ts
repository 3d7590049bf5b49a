/**
 * Parameters with their first values. Every module of this folder makes its parameters here.
 *
 * [Note: deferred parameters] A model that no rank could hold whole is made inside `deferParameters`: its parameters get
 * a shape and a way to make their values, and no memory. Generators are counters: each moves on as if the values had been
 * drawn, and the values drawn later, from the position that was left, have the bits of those drawn at once.
 */
import { ContextKey } from '../core/context';
import { InvalidArgumentError } from '../core/errors';
import { Generator } from '../core/generator';
import { defaultGenerator } from '../core/random';
import { sizeOf, type Shape } from '../tensor/shape';
import { Tensor } from '../tensor/tensor';
import { Parameter } from './parameter';

/** Options of modules that draw random numbers. */
export interface GeneratorOptions {
  /** Where they come from; default: the generator of this context, see `manualSeed`. */
  readonly generator?: Generator | undefined;
}

const isDeferringKey = new ContextKey(false);

/** Run `fn` with the parameters that modules make inside deferred; those of `new Parameter(tensor)` are not. */
export function deferParameters<R>(fn: () => R): R {
  return isDeferringKey.run(true, fn);
}

interface Distribution {
  readonly draw: (generator: Generator) => number;
  /** Words that one draw takes. */
  readonly words: number;
}

/** A float32 parameter with values uniform from -bound to bound. */
export function uniformParameter(shape: Shape, bound: number, generator?: Generator): Parameter {
  return drawnParameter(shape, { draw: (from) => (2 * from.nextDouble() - 1) * bound, words: 2 }, generator);
}

/** A float32 parameter with normally distributed values, mean 0 and standard deviation 1. */
export function normalParameter(shape: Shape, generator?: Generator): Parameter {
  return drawnParameter(shape, { draw: (from) => from.nextNormal(), words: 4 }, generator);
}

/** A float32 parameter, every element `value`. */
export function constantParameter(shape: Shape, value: number): Parameter {
  return madeParameter(shape, () => new Float32Array(sizeOf(shape)).fill(value));
}

function drawnParameter(shape: Shape, { draw, words }: Distribution, generator = defaultGenerator()): Parameter {
  const size = sizeOf(shape);
  const state = generator.getState();
  const parameter = madeParameter(shape, () => {
    const from = new Generator(state.seed);
    from.setState(state);
    return Float32Array.from({ length: size }, () => draw(from));
  });
  generator.setState({ ...state, position: state.position + words * size });
  return parameter;
}

function madeParameter(shape: Shape, values: () => Float32Array): Parameter {
  return isDeferringKey.get() ? Parameter.deferred(shape, values) : new Parameter(Tensor.wrap(values(), shape));
}

/** @throws InvalidArgumentError unless `value` is a whole number above 0 */
export function checkSize(value: unknown, what: string): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0) return value;
  throw new InvalidArgumentError(`${what}: expected a whole number above 0, got ${String(value)}.`);
}
