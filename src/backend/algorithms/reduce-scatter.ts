/** Reduce over all ranks, each keeps its slice; and reduce to one rank, which is the same with one slice. */
import { partsOf } from './partition';
import { reduceAtOwners } from './reduce-at-owners';
import type { Place, Schedule } from './schedule';

/** @param lengths elements of each rank's slice */
export function reduceScatterSchedule(place: Place, lengths: readonly number[], chunkLength: number): Schedule {
  return reduceAtOwners(place, { slices: partsOf(lengths), outputStart: 0, chunkLength, answer: 'room' });
}

/** The others are done when `root` is: only then do they know that all ranks called the same. */
export function reduceSchedule(place: Place, root: number, length: number, chunkLength: number): Schedule {
  const slices = Array.from({ length: place.size }, (_unused, rank) =>
    rank === root ? { start: 0, length } : undefined,
  );
  return reduceAtOwners(place, { slices, outputStart: 0, chunkLength, answer: 'done' });
}
