/** The generator that is used where none is passed: one per rank in a mock world, one for the process otherwise. */
import { ContextKey } from './context';
import { Generator } from './generator';

export const generatorKey = new ContextKey<Generator>(new Generator(0));

/** The default generator of this asynchronous context. */
export function defaultGenerator(): Generator {
  return generatorKey.get();
}

/** Restart the default generator of this context (of this rank, in a mock world) from `seed`. */
export function manualSeed(seed: number): void {
  defaultGenerator().setState(new Generator(seed).getState());
}
