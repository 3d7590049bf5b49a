/** All parts to one rank, and from one rank. */
import { NOTHING, peersOf, ScheduleBuilder, type Place, type Schedule } from './schedule';

/** The others are done when `root` has all parts: only then do they know that all ranks called the same. */
export function gatherSchedule(place: Place, root: number, length: number): Schedule {
  const builder = new ScheduleBuilder();
  if (place.rank !== root) {
    builder.send(root, { space: 'input', start: 0, length });
    builder.receive(root, NOTHING);
    return builder.build();
  }
  const peers = peersOf(place);
  const received = peers.map((peer) => builder.receive(peer, { space: 'output', start: peer * length, length }));
  builder.copy({ space: 'input', start: 0, length }, { space: 'output', start: root * length, length });
  for (const peer of peers) builder.send(peer, NOTHING, received);
  return builder.build();
}

export function scatterSchedule(place: Place, root: number, length: number): Schedule {
  const builder = new ScheduleBuilder();
  const part = { space: 'output', start: 0, length } as const;
  if (place.rank !== root) {
    builder.receive(root, part);
    return builder.build();
  }
  for (const peer of peersOf(place)) builder.send(peer, { space: 'input', start: peer * length, length });
  builder.copy({ space: 'input', start: root * length, length }, part);
  return builder.build();
}
