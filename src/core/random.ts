/** The generator that is used where none is passed: one per rank in a mock world, one for the process otherwise. */
import { ContextKey } from './context';
import { Generator, type GeneratorState } from './generator';

export const generatorKey = new ContextKey<Generator>(new Generator(0));

/** The default generator of this asynchronous context. */
export function defaultGenerator(): Generator {
  const generator = generatorKey.get();
  noteDraws(generator);
  return generator;
}

/** Who wants to know from where numbers are drawn here, innermost first. */
interface DrawLog {
  readonly states: Map<Generator, GeneratorState>;
  readonly outer: DrawLog | undefined;
}

const drawLogKey = new ContextKey<DrawLog | undefined>(undefined);

/** Tell `logDraws` that numbers are about to be drawn from `generator`. Operators that draw call it. */
export function noteDraws(generator: Generator): void {
  for (let log = drawLogKey.get(); log !== undefined; log = log.outer) {
    if (!log.states.has(generator)) log.states.set(generator, generator.getState());
  }
}

/** Run `fn`, and enter in `states` every generator that an operator inside draws from, as it was before the first draw. */
export function logDraws<R>(states: Map<Generator, GeneratorState>, fn: () => R): R {
  return drawLogKey.run({ states, outer: drawLogKey.get() }, fn);
}

/** Run `fn` with the generators set back to `states`; afterwards they go on from where they were. */
export async function repeatDraws<T>(
  states: ReadonlyMap<Generator, GeneratorState>,
  fn: () => T | Promise<T>,
): Promise<T> {
  const now = [...states.keys()].map((generator) => [generator, generator.getState()] as const);
  for (const [generator, state] of states) generator.setState(state);
  try {
    return await fn();
  } finally {
    for (const [generator, state] of now) generator.setState(state);
  }
}

/** Restart the default generator of this context (of this rank, in a mock world) from `seed`. */
export function manualSeed(seed: number): void {
  defaultGenerator().setState(new Generator(seed).getState());
}

/** The seed of one rank's default generator: neighbouring worlds' ranks share no stream, seed s rank 1 is not seed s+1 rank 0. */
export function rankSeed(seed: number, rank: number): number {
  return (seed % 2 ** 32) * 2 ** 16 + rank;
}
