/** Wait for all ranks. */
import { NOTHING, ScheduleBuilder, type Place, type Schedule } from './schedule';

/**
 * Dissemination: in round k tell the rank 2^k further on, hear from the one 2^k back; after ceil(log2 N) rounds every
 * rank has heard of every other (Hensgen, Finkel and Manber, 1988).
 */
export function barrierSchedule({ rank, size }: Place): Schedule {
  const builder = new ScheduleBuilder();
  const heard: number[] = [];
  for (let distance = 1; distance < size; distance *= 2) {
    builder.send((rank + distance) % size, NOTHING, [...heard]);
    heard.push(builder.receive((rank - distance + size) % size, NOTHING));
  }
  return builder.build();
}
