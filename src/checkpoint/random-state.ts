/** Each rank's random generators, and which ones a rank gets that was not there when the state was saved. */
import { Generator, type GeneratorState } from '../core/generator';
import { rankSeed } from '../core/random';

/**
 * The state for rank `rank`, of those that were saved by rank.
 *
 * A rank gets its own. One that was not there gets the same as all others if these were equal (a generator that ranks use
 * to draw the same numbers), and otherwise a new stream: seeded by the next word of rank 0's and by its own rank, so that
 * it is the same whenever this state is loaded, and no other rank's.
 */
export function randomStateFor(saved: readonly GeneratorState[], rank: number): GeneratorState {
  const own = saved[rank];
  if (own !== undefined) return own;
  const first = saved[0] as GeneratorState;
  if (saved.length > 1 && saved.every((state) => isSameState(state, first))) return first;
  const generator = new Generator(0);
  generator.setState(first);
  return new Generator(rankSeed(generator.nextUint32(), rank)).getState();
}

function isSameState(a: GeneratorState, b: GeneratorState): boolean {
  return a.seed === b.seed && a.position === b.position;
}
