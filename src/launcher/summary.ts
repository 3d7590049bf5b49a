/** What the launcher says about a start that failed. */
import type { WireError } from '../core/error-wire';
import { endedEarly, hasFailed, type RankExit } from './rank-report';

/** Who failed first and why, or who left the others waiting; then what became of the others. */
export function describeFailure(first: RankExit, exits: readonly RankExit[]): readonly string[] {
  const early = endedEarly(exits);
  if (early !== undefined) {
    return [
      `rank ${early.rank} ended early (exit 0) while others waited for it: ${describeTime(early)}`,
      ...describeOthers(early, exits),
    ];
  }
  return [
    `rank ${first.rank} failed first: ${describeEnd(first)} ${describeTime(first)}`,
    ...reasonOf(first).map((line) => `  ${line}`),
    ...describeOthers(first, exits),
  ];
}

function describeTime({ afterMs, processId }: RankExit): string {
  const process = processId === undefined ? '' : `, process ${processId}`;
  return `after ${(afterMs / 1000).toFixed(1)} s${process}`;
}

function describeEnd({ code, signal, processId }: RankExit): string {
  if (processId === undefined) return 'its process could not be started';
  return signal === null ? `exit code ${code}` : `killed by ${signal}`;
}

/** The error, or else the last words. */
function reasonOf({ error, lastLines }: RankExit): readonly string[] {
  if (error !== undefined) return describeError(error);
  return lastLines.length === 0 ? ['it wrote nothing to stderr'] : lastLines;
}

function describeError({ name, message, stack }: WireError): readonly string[] {
  const head = `${name}: ${message}`;
  const text = stack ?? head;
  return (text.includes(message) ? text : `${head}\n${text}`).split('\n').map((line) => line.trimEnd());
}

function describeOthers(culprit: RankExit, exits: readonly RankExit[]): readonly string[] {
  const others = exits.filter(({ rank }) => rank !== culprit.rank);
  const stopped = others.filter((exit) => exit.wasStopped);
  const failed = others.filter((exit) => hasFailed(exit) && !exit.wasStopped);
  const done = others.filter((exit) => !hasFailed(exit) && !exit.wasStopped);
  return [
    ...failed.sort(byRank).map((exit) => `rank ${exit.rank} failed after it: ${describeConsequence(exit)}`),
    ...listRanks(stopped, 'stopped by the launcher'),
    ...listRanks(done, 'done'),
  ];
}

function describeConsequence(exit: RankExit): string {
  const reason = exit.error === undefined ? undefined : `${exit.error.name}: ${exit.error.message.split('\n')[0]}`;
  return reason === undefined ? describeEnd(exit) : `${describeEnd(exit)}, ${reason}`;
}

function listRanks(exits: readonly RankExit[], what: string): readonly string[] {
  const ranks = exits.map(({ rank }) => rank).sort((a, b) => a - b);
  return ranks.length === 0 ? [] : [`rank${ranks.length > 1 ? 's' : ''} ${ranks.join(', ')}: ${what}`];
}

function byRank(a: RankExit, b: RankExit): number {
  return a.rank - b.rank;
}
