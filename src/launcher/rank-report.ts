/** How a rank ended, as far as the launcher knows. */
import { constants } from 'node:os';
import type { WireError } from '../core/error-wire';

/** What rank-guard.ts sends to the launcher. */
export interface RankReport {
  /** The error that nobody caught. */
  readonly lockstepRankFailed: WireError;
}

export interface RankExit {
  readonly rank: number;
  readonly processId: number | undefined;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** Milliseconds from its start. */
  readonly afterMs: number;
  /** The launcher had told it to stop before it ended. */
  readonly wasStopped: boolean;
  /** The error that ended it, where it was not caught, or why the process could not be started. */
  readonly error: WireError | undefined;
  /** The last lines that it wrote to stderr. */
  readonly lastLines: readonly string[];
}

export function hasFailed({ code }: RankExit): boolean {
  return code !== 0;
}

/** As a shell gives it: the exit code, or 128 and the signal's number. */
export function exitCodeOf({ code, signal }: Pick<RankExit, 'code' | 'signal'>): number {
  if (code !== null) return code;
  return signal === null ? 1 : 128 + constants.signals[signal];
}

/**
 * How our errors tell that another rank is to blame. A script that catches one may print its message alone, without the
 * name of the class.
 */
const CONSEQUENCES = [
  /PeerLostError|LOCKSTEP_PEER_LOST/,
  /\brank \d+\)? (?:of group \S+ was lost:|is lost:|has left:|has closed group )/,
  /\bgroup \S+ (?:has failed and cannot be used any more|was aborted by rank \d)/,
  /\bthe store at \S+, which .+, is gone:/,
  /\brendezvous: rank \d+ .+ before all \d+ ranks /,
];

/** The messages in which the rank that was lost has its number in the whole job: [Note: names of ranks]. */
const LOST_RANK =
  /\brank (\d+) (?:of group world was lost:|is lost:|has left:|has closed group world,|or 'lockstep store' serves)|\brendezvous: rank (\d+) .+ before all|\(global rank (\d+)\) (?:of group \S+ was lost:|has closed group )/g;

/** It failed because of another rank, not by itself. */
export function isConsequence({ error, lastLines }: RankExit): boolean {
  // A call on a group that has failed or was aborted has the first failure as its cause.
  if (error !== undefined) return hasLostPeer(error) || (error.code === 'LOCKSTEP_CLOSED' && error.cause !== null);
  return lastLines.some(tellsOfConsequence);
}

function tellsOfConsequence(line: string): boolean {
  return CONSEQUENCES.some((pattern) => pattern.test(line));
}

function hasLostPeer(error: WireError): boolean {
  return error.code === 'LOCKSTEP_PEER_LOST' || (error.cause !== null && hasLostPeer(error.cause));
}

/** Nothing that another rank may still say can put the blame elsewhere. */
export function isSurelyFirst(exit: RankExit): boolean {
  return exit.signal !== null || (exit.error !== undefined && !isConsequence(exit));
}

/**
 * The failure that the others follow from: a process learns of a lost peer and may end before the peer itself does, so
 * the order in time is not enough.
 */
export function firstFailure(exits: readonly RankExit[]): RankExit | undefined {
  const own = exits.filter((exit) => hasFailed(exit) && !exit.wasStopped);
  return own.find(isSurelyFirst) ?? own.find((exit) => !isConsequence(exit)) ?? own[0];
}

/** The rank of which the failed ones say that they lost it, and which had ended with 0: it left too early. */
export function endedEarly(exits: readonly RankExit[]): RankExit | undefined {
  const failed = exits.filter((exit) => hasFailed(exit) && !exit.wasStopped);
  if (!failed.every(isConsequence)) return undefined;
  const lost = failed.flatMap(lostRanks);
  return exits.find((exit) => !hasFailed(exit) && !exit.wasStopped && lost.includes(exit.rank));
}

function lostRanks({ error, lastLines }: RankExit): readonly number[] {
  if (error !== undefined) return lostRanksOf(error);
  return lastLines.flatMap((line) =>
    Array.from(line.matchAll(LOST_RANK), (match) => Number(match[1] ?? match[2] ?? match[3])),
  );
}

/** With their numbers in the job, which a group other than the world numbers anew. */
function lostRanksOf({ code, globalRanks, cause }: WireError): readonly number[] {
  const own = code === 'LOCKSTEP_PEER_LOST' ? (globalRanks ?? []) : [];
  return cause === null ? own : [...own, ...lostRanksOf(cause)];
}
