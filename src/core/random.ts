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

/** The seed of one rank's default generator: neighbouring worlds' ranks share no stream, seed s rank 1 is not seed s+1 rank 0. */
export function rankSeed(seed: number, rank: number): number {
  return (seed % 2 ** 32) * 2 ** 16 + rank;
}
