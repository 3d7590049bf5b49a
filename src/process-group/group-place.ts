import type { GuardedEmitter } from './guarded-emitter';
import type { GroupEvents } from './events';

/** Where a group stands in its world. */
export interface GroupPlace {
  /** Its identity, the same on all ranks, as errors and events print it: 'world', 'world/0'. */
  readonly name: string;
  /** Global rank of each rank. */
  readonly ranks: readonly number[];
  readonly worldSize: number;
  /** Who listens to all groups of the world. */
  readonly worldEvents?: GuardedEmitter<GroupEvents> | undefined;
}

/** The place of the group of all ranks. */
export function placeOfWorld(worldSize: number): GroupPlace {
  return { name: 'world', ranks: Array.from({ length: worldSize }, (_unused, rank) => rank), worldSize };
}
