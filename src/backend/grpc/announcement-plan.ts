/** What ranks tell each other of a collective whose data travels elsewhere. */
import { barrierSchedule } from '../algorithms/barrier';
import { peersOf, ScheduleBuilder, type Place, type Schedule } from '../algorithms/schedule';
import type { CollectiveCall } from '../call';
import type { UnequalPair } from '../mismatch';
import type { CollectivePlan } from './collective-plan';

/**
 * A barrier under the fingerprint of the call. In an all-to-all each pair of ranks also tells each other its counts, which
 * the fingerprint lacks: [Note: all-to-all counts]. So both ranks of a pair that disagree find out.
 */
export function announcementPlan(call: CollectiveCall, place: Place): CollectivePlan {
  const { sendCounts, recvCounts } = call;
  if (sendCounts === undefined || recvCounts === undefined) {
    const nothing = { input: undefined, output: undefined, dtype: undefined, reduceOp: undefined };
    return { schedule: barrierSchedule(place), ...nothing };
  }
  const input = Float64Array.from(sendCounts.flatMap((count, peer) => [count, recvCounts[peer] as number]));
  const output = new Float64Array(input.length);
  return {
    schedule: pairsSchedule(place),
    input,
    output,
    dtype: 'float64',
    reduceOp: undefined,
    unequalPair: () => findUnequal(place, input, output),
  };
}

/** Two numbers from every rank to every other. */
function pairsSchedule(place: Place): Schedule {
  const builder = new ScheduleBuilder();
  for (const peer of peersOf(place)) {
    builder.send(peer, { space: 'input', start: 2 * peer, length: 2 });
    builder.receive(peer, { space: 'output', start: 2 * peer, length: 2 });
  }
  return builder.build();
}

/** @param own by rank: elements for it, and from it. @param others' by rank: elements for this one, and from this one */
function findUnequal({ rank, size }: Place, own: Float64Array, others: Float64Array): UnequalPair | undefined {
  for (let peer = 0; peer < size; peer++) {
    if (peer === rank) continue;
    if (others[2 * peer] !== own[2 * peer + 1]) return { sender: peer, receiver: rank };
    if (others[2 * peer + 1] !== own[2 * peer]) return { sender: rank, receiver: peer };
  }
  return undefined;
}
