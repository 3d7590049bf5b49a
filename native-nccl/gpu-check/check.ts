/** What a check is. */
import type { Bench } from './bench';

export interface Check {
  readonly name: string;
  /** Its process is killed then, and it has failed; default DEFAULT_LIMIT_MS. */
  readonly limitMs?: number | undefined;
  /** Throws what is wrong; `bench.skip` says why it cannot be run here. */
  run(bench: Bench): void | Promise<void>;
}

/** Checks that share a process, and with it what `Bench` opens. */
export interface CheckGroup {
  readonly name: string;
  readonly checks: readonly Check[];
}

export const DEFAULT_LIMIT_MS = 20_000;

export type Outcome = 'ok' | 'failed' | 'skipped';

/** Numbers and words that a check leaves in the report. */
export type Notes = Record<string, unknown>;

export interface Verdict {
  readonly outcome: Outcome;
  readonly durationMs: number;
  /** Why it failed or was skipped. */
  readonly reason?: string | undefined;
  readonly notes?: Notes | undefined;
}

export interface CheckResult extends Verdict {
  readonly group: string;
  readonly name: string;
}

/** Thrown by `bench.skip`. */
export class Skipped extends Error {
  override readonly name = 'Skipped';
}

/** Messages of a check process to the runner: begun and ended of each check in turn, then closed. */
export type CheckMessage =
  | { readonly kind: 'begun' }
  | { readonly kind: 'ended'; readonly verdict: Verdict }
  | { readonly kind: 'closed'; readonly reason: string | undefined };

export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** `ok       kernels: fill                12 ms`, and why if it is not ok. */
export function resultLine({ group, name, outcome, durationMs, reason }: CheckResult): string {
  const verdict = { ok: 'ok', failed: 'FAILED', skipped: 'skipped' }[outcome];
  // A stack or a compiler's log has many lines; they are in the report.
  const why = reason === undefined ? '' : `: ${reason.split('\n')[0]}`;
  return `${verdict.padEnd(8)}${group}: ${name}${why}  (${durationMs.toFixed(0)} ms)`;
}
