/** What a WorldError says: whose error came first, and what became of the others. */
import { WorldError, isLockstepError } from '../core/errors';

/** A rank that failed, in the order of failing. */
export interface RankFailure {
  readonly rank: number;
  readonly error: Error;
}

/** A world that did not end by itself: where each rank stands, by rank. */
export interface Stall {
  readonly stallMs: number;
  readonly standings: readonly string[];
}

export function worldError(size: number, failures: readonly RankFailure[], stall: Stall | undefined): WorldError {
  const errors = new Array<Error | undefined>(size);
  for (const { rank, error } of failures) errors[rank] = error;
  const first = firstCause(failures);
  const parts = [
    ...(first === undefined ? [] : [first.error.message, '', describeFailures(size, first, failures)]),
    ...(stall === undefined ? [] : [describeStall(stall)]),
  ];
  return new WorldError(parts.join('\n'), errors, { rank: first?.rank, cause: first?.error });
}

/** The first failure that does not merely follow from another rank's. */
function firstCause(failures: readonly RankFailure[]): RankFailure | undefined {
  return failures.find(({ error }) => !isConsequence(error)) ?? failures[0];
}

/** True if the error, or what it was caused by, tells of another rank's failure. */
function isConsequence(error: unknown): boolean {
  if (isLockstepError(error, 'LOCKSTEP_PEER_LOST') || isLockstepError(error, 'LOCKSTEP_CLOSED')) return true;
  const cause = typeof error === 'object' && error !== null ? (error as { cause?: unknown }).cause : undefined;
  return cause !== undefined && isConsequence(cause);
}

function describeFailures(size: number, first: RankFailure, failures: readonly RankFailure[]): string {
  const heading = `Rank ${first.rank} of ${size} failed first, with ${first.error.name}.`;
  const others = failures.filter((failure) => failure !== first).sort((a, b) => a.rank - b.rank);
  if (others.length === 0) return heading;
  const lines = others.map(({ rank, error }) => {
    const isSame = error.message === first.error.message;
    return `  rank ${rank}: ${error.name}: ${isSame ? 'the same' : firstLine(error.message)}`;
  });
  return [`${heading} Then:`, ...lines].join('\n');
}

function describeStall({ stallMs, standings }: Stall): string {
  return [
    `No rank made progress for ${stallMs} ms:`,
    ...standings.map((standing) => `  ${standing}`),
    'A rank that runs without making calls may wait for a promise that nobody settles, or for a timer that does not fire (fake timers?). Pass a larger stallMs if it only needs longer.',
  ].join('\n');
}

function firstLine(text: string): string {
  return text.split('\n', 1)[0] ?? '';
}
