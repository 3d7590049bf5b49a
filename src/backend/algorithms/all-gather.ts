/** Every rank's part, on every rank. */
import { partsOf } from './partition';
import { peersOf, ScheduleBuilder, type Place, type Schedule } from './schedule';

/** Straight to each other rank, which has a place for it: (N-1) times the own part, in one hop. */
export function allGatherSchedule(place: Place, lengths: readonly number[]): Schedule {
  const parts = partsOf(lengths);
  const builder = new ScheduleBuilder();
  const ownLength = lengths[place.rank] as number;
  for (const peer of peersOf(place)) {
    const part = parts[peer];
    if (part === undefined) continue;
    builder.send(peer, { space: 'input', start: 0, length: ownLength });
    builder.receive(peer, { space: 'output', ...part });
  }
  const own = parts[place.rank];
  if (own !== undefined) builder.copy({ space: 'input', start: 0, length: ownLength }, { space: 'output', ...own });
  return builder.build();
}
