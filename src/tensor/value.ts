/** What operators work on: memory and a shape, no graph. */
import type { Shape } from './shape';
import type { Storage } from './storage';

export interface Value {
  readonly storage: Storage;
  readonly shape: Shape;
}

/**
 * The gradients of an operator's inputs, given that of its output; undefined where `needs` is false or there is none.
 *
 * Each is new memory, or the memory of `gradient` itself (under another shape perhaps): the engine copies what is shared
 * before it changes it.
 */
export type BackwardFunction = (gradient: Value, needs: readonly boolean[]) => readonly (Value | undefined)[];

/** What an operator's forward gives. */
export interface Result {
  readonly output: Value;
  /** The values that `backward` reads; their memory is counted until it has run. */
  readonly saves: readonly Value[];
  /** Undefined for operators that have no gradient (comparisons, argmax). */
  readonly backward: BackwardFunction | undefined;
}
