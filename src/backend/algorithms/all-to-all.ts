/** A part from every rank to every rank. */
import { partsOf, type Part } from './partition';
import { NOTHING, peersOf, ScheduleBuilder, type Place, type Schedule } from './schedule';

/**
 * Each part goes straight to its receiver, which answers that it was what it expected: counts belong to one rank, so
 * nobody else could tell the sender that the two disagree.
 *
 * @param sendLengths elements for each rank, from the front of the input
 * @param receiveLengths elements from each rank, into the front of the output
 */
export function allToAllSchedule(
  place: Place,
  sendLengths: readonly number[],
  receiveLengths: readonly number[],
): Schedule {
  const sent = partsOf(sendLengths);
  const received = partsOf(receiveLengths);
  const builder = new ScheduleBuilder();
  // Empty parts too are sent: their length is how the receiver knows that the two agree.
  for (const peer of peersOf(place)) {
    builder.send(peer, { space: 'input', ...(sent[peer] as Part) });
    const arrived = builder.receive(peer, { space: 'output', ...(received[peer] as Part) });
    builder.send(peer, NOTHING, [arrived]);
    builder.receive(peer, NOTHING);
  }
  const { rank } = place;
  builder.copy({ space: 'input', ...(sent[rank] as Part) }, { space: 'output', ...(received[rank] as Part) });
  return builder.build();
}
