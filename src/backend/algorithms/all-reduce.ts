/** Reduce over all ranks, the result on every rank. Input and output are the same memory. */
import { evenParts } from './partition';
import { reduceAtOwners } from './reduce-at-owners';
import { peersOf, ScheduleBuilder, type Place, type Region, type Schedule } from './schedule';

export interface AllReduceShape {
  readonly length: number;
  readonly chunkLength: number;
}

/**
 * Each rank owns a slice, reduces it in rank order and sends the result out: 2 (N-1)/N of the buffer per rank, as a
 * ring sends (Patarasuk and Yuan, 2009), in two hops instead of 2 (N-1).
 */
export function allReduceSlices(place: Place, { length, chunkLength }: AllReduceShape): Schedule {
  const slices = evenParts(length, place.size);
  const outputStart = slices[place.rank]?.start ?? 0;
  return reduceAtOwners(place, { slices, outputStart, chunkLength, answer: 'result' });
}

/** Everybody sends everything to everybody, and reduces in rank order: one hop, for small messages. */
export function allReduceDirect(place: Place, length: number): Schedule {
  const { rank, size } = place;
  const builder = new ScheduleBuilder((size - 1) * length);
  const whole: Region = { space: 'input', start: 0, length };
  const slot = (peer: number): Region => ({
    space: 'scratch',
    start: (peer < rank ? peer : peer - 1) * length,
    length,
  });
  const moved: number[] = [];
  for (const peer of peersOf(place)) {
    // The reduction waits for the sends too: it writes over what they send.
    moved.push(builder.send(peer, whole), builder.receive(peer, slot(peer)));
  }
  const inputs = Array.from({ length: size }, (_unused, peer) => (peer === rank ? whole : slot(peer)));
  builder.reduce(inputs, { space: 'output', start: 0, length }, moved);
  return builder.build();
}
