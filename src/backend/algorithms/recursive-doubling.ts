/** All-reduce by recursive doubling: few messages for the rank, at the price of rank order. */
import { ScheduleBuilder, type Place, type Region, type Schedule } from './schedule';

/**
 * In round k every rank exchanges all that it has reduced with the rank whose number differs in bit k: log2 N messages
 * of the whole buffer. Ranks beyond the largest power of two first give their data to one below, and get the result
 * from it (Thakur, Rabenseifner and Gropp, 2005). Input and output are the same memory.
 *
 * Elements are reduced as a tree, (0 + 1) + (2 + 3), so the bits are not those of rank order. Both ranks of an exchange
 * take the lower one's part first, so all ranks end with the same bits.
 */
export function allReduceDoubling({ rank, size }: Place, length: number): Schedule {
  const coreSize = 2 ** Math.floor(Math.log2(size));
  const numRounds = Math.log2(coreSize);
  const whole: Region = { space: 'output', start: 0, length };
  if (rank >= coreSize) {
    const builder = new ScheduleBuilder();
    const sent = builder.send(rank - coreSize, whole);
    builder.receive(rank - coreSize, whole, [sent]);
    return builder.build();
  }

  // A slot for each message: a peer may be a round ahead.
  const builder = new ScheduleBuilder((numRounds + 1) * length);
  const slot = (index: number): Region => ({ space: 'scratch', start: index * length, length });
  const guest = rank + coreSize;
  const hasGuest = guest < size;
  let ready: number[] = [];
  if (hasGuest) {
    const received = builder.receive(guest, slot(numRounds));
    ready = [builder.reducePartially([whole, slot(numRounds)], whole, [received])];
  }
  for (let round = 0; round < numRounds; round++) {
    const peer = rank ^ (1 << round);
    const sent = builder.send(peer, whole, ready);
    const received = builder.receive(peer, slot(round));
    const inputs = peer < rank ? [slot(round), whole] : [whole, slot(round)];
    ready = [builder.reducePartially(inputs, whole, [...ready, sent, received])];
  }
  ready = [builder.finish(whole, ready)];
  if (hasGuest) builder.send(guest, whole, ready);
  return builder.build();
}
