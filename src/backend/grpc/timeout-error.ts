/** The error of a call whose deadline has passed, from what the other ranks say where they are. */
import { CollectiveTimeoutError } from '../../core/errors';
import type { GrpcCall } from './grpc-call';
import type { Answers } from './roll-call';

/**
 * Some ranks have not come. To blame are those that do not even answer; else those that answer and are in no call; only
 * where there are neither, those that wait in another call.
 *
 * @param missing ranks that have not come, not empty
 * @param behind where they have not come, if that is not the call itself: ' in ...'
 */
export function missingRanksError(call: GrpcCall, missing: readonly number[], answers: Answers, behind = ''): Error {
  const { members } = call.info;
  const silent = missing.filter((rank) => answers[rank] === undefined);
  const idle = missing.filter((rank) => answers[rank]?.waitsIn === null);
  const waiting = missing.filter((rank) => typeof answers[rank]?.waitsIn === 'string');
  const sentences: string[] = [];
  if (silent.length > 0) {
    const verb = silent.length === 1 ? 'does' : 'do';
    sentences.push(`${members.namesAtStart(silent)} did not arrive${behind} (and ${verb} not answer).`);
  }
  if (idle.length > 0) sentences.push(`${members.namesAtStart(idle)} did not arrive${behind}.`);
  for (const rank of waiting) sentences.push(`${members.namesAtStart([rank])} waits in ${answers[rank]?.waitsIn}.`);
  const blamed = [silent, idle, waiting].find((ranks) => ranks.length > 0) ?? [];
  return timeoutError(call, sentences, blamed);
}

/** All ranks have come, and something of what these send is still missing. */
export function missingDataError(call: GrpcCall, ranks: readonly number[], behind: string): Error {
  const who = ranks.length === 0 ? 'Everybody' : call.info.members.namesAtStart(ranks);
  return timeoutError(call, [`${who} arrived${behind}, but not all data has come.`], ranks);
}

function timeoutError(call: GrpcCall, sentences: readonly string[], ranks: readonly number[]): Error {
  const { op, rank, group, members, sequence, timeoutMs } = call.info;
  return new CollectiveTimeoutError(
    `${call.title}, on ${members.name(rank)}: not finished within ${timeoutMs} ms. ${sentences.join(' ')} If a rank is only slow, pass a larger timeoutMs. The group cannot be used any more; build another.`,
    { rank, group, op, sequence, ...members.blame(ranks) },
  );
}
