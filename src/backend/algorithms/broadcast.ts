/** Copy from one rank to all. */
import { chunksOf } from './partition';
import { ScheduleBuilder, type Place, type Region, type Schedule } from './schedule';

export interface BroadcastShape {
  readonly root: number;
  readonly length: number;
}

/** The rank whose data it is sends from its input; the others receive into, and pass on from, their output. */
function regionOf({ rank }: Place, { root }: BroadcastShape, start: number, length: number): Region {
  return { space: rank === root ? 'input' : 'output', start, length };
}

/** Root, root + 1, ...: every rank passes each chunk on as it comes. For large buffers: all links work at once. */
export function broadcastChain(place: Place, shape: BroadcastShape, chunkLength: number): Schedule {
  const { rank, size } = place;
  const { root, length } = shape;
  const builder = new ScheduleBuilder();
  const isLast = (rank + 1) % size === root;
  for (const chunk of chunksOf({ start: 0, length }, chunkLength)) {
    const region = regionOf(place, shape, chunk.start, chunk.length);
    const received = rank === root ? [] : [builder.receive((rank + size - 1) % size, region)];
    if (!isLast) builder.send((rank + 1) % size, region, received);
  }
  return builder.build();
}

/** Those that have it double in every round: log2(N) hops, for small buffers. */
export function broadcastTree(place: Place, shape: BroadcastShape): Schedule {
  const { rank, size } = place;
  const { root, length } = shape;
  const builder = new ScheduleBuilder();
  const region = regionOf(place, shape, 0, length);
  const position = (rank - root + size) % size;
  const rankAt = (other: number): number => (other + root) % size;
  let received: number[] = [];
  for (let distance = 1; distance < size; distance *= 2) {
    if (position >= distance && position < 2 * distance) {
      received = [builder.receive(rankAt(position - distance), region)];
    } else if (position < distance && position + distance < size) {
      builder.send(rankAt(position + distance), region, received);
    }
  }
  return builder.build();
}
