/** Runs the checks of a group in processes, each check within its limit; a check that ends its process ends no other check. */
import { fork, type ChildProcess } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { DEFAULT_LIMIT_MS, type CheckGroup, type CheckMessage, type CheckResult, type Verdict } from './check';

/** For closing devices and communicators, and for the process to end by itself. */
const CLOSE_LIMIT_MS = 20_000;
const GRACE_MS = 8000;
const CLOSING = 'everything is closed and the process ends by itself';

export interface GroupRun {
  /** Checks that have not begun by then do not, and the rest are killed GRACE_MS later; on performance.now(). */
  readonly dueMs: number;
  /** What the processes print goes there. */
  readonly logPath: string;
  readonly environment: NodeJS.ProcessEnv;
  onResult(result: CheckResult): void;
  /** Speaks CheckMessage; default: check-process.js. */
  readonly program?: string | undefined;
}

export async function runGroup(group: CheckGroup, run: GroupRun): Promise<void> {
  for (let first = 0; first < group.checks.length;) first = await runFrom(group, first, run);
}

/** @returns the index of the check to go on with, in a new process */
function runFrom(group: CheckGroup, first: number, run: GroupRun): Promise<number> {
  const report = (index: number, verdict: Verdict): void =>
    run.onResult({ group: group.name, name: group.checks[index]?.name ?? CLOSING, ...verdict });
  if (performance.now() > run.dueMs) {
    const reason = 'no time was left for it';
    for (let index = first; index < group.checks.length; index++) {
      report(index, { outcome: 'failed', durationMs: 0, reason });
    }
    return Promise.resolve(group.checks.length);
  }
  return new Promise((settle, reject) => {
    const child = startProcess(group, first, run);
    const limit = new Limit(child, run.dueMs + GRACE_MS);
    let next = first; // the check that is running, or comes next; their number: closing
    let isRunning = false;
    let hasFailed = false;
    let closeReason: string | undefined;
    limit.set(CLOSE_LIMIT_MS); // until its first message
    child.on('message', (message: CheckMessage) => {
      if (message.kind === 'closed') {
        closeReason = message.reason;
        return;
      }
      isRunning = message.kind === 'begun';
      if (message.kind === 'begun') limit.set(group.checks[next]?.limitMs ?? DEFAULT_LIMIT_MS);
      else {
        report(next, message.verdict);
        hasFailed = message.verdict.outcome === 'failed';
        next += 1;
        limit.set(CLOSE_LIMIT_MS);
      }
    });
    child.on('error', reject);
    child.on('close', (code, signal) => {
      const { durationMs, exceededMs } = limit.end();
      if (hasFailed && !isRunning && code === 0) return settle(next); // it left, for a fresh start
      const reason =
        exceededMs !== undefined
          ? `not finished after ${exceededMs} ms; its process was killed`
          : code !== 0
            ? `its process ended with ${signal ?? `exit code ${code}`}; see ${run.logPath}`
            : next < group.checks.length
              ? 'its process ended before it'
              : closeReason;
      report(next, { outcome: reason === undefined ? 'ok' : 'failed', durationMs, reason });
      settle(next + 1);
    });
  });
}

function startProcess(
  group: CheckGroup,
  first: number,
  { environment, logPath, program = join(__dirname, 'check-process.js') }: GroupRun,
): ChildProcess {
  const child = fork(program, [group.name, String(first)], {
    env: environment,
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on('data', (bytes: Buffer) => appendFileSync(logPath, bytes));
  }
  return child;
}

/** Kills the process when the time for what it does is over. */
class Limit {
  readonly #child: ChildProcess;
  readonly #dueMs: number;
  #timer: NodeJS.Timeout | undefined;
  #beganMs = performance.now();
  #exceededMs: number | undefined;

  /** @param dueMs when it is over in any case, on performance.now() */
  constructor(child: ChildProcess, dueMs: number) {
    this.#child = child;
    this.#dueMs = dueMs;
  }

  /** Something else begins. */
  set(wantedMs: number): void {
    clearTimeout(this.#timer);
    this.#beganMs = performance.now();
    const limitMs = Math.round(Math.min(wantedMs, Math.max(0, this.#dueMs - this.#beganMs)));
    this.#timer = setTimeout(() => {
      this.#exceededMs = limitMs;
      this.#child.kill('SIGKILL');
    }, limitMs);
  }

  end(): { readonly durationMs: number; readonly exceededMs: number | undefined } {
    clearTimeout(this.#timer);
    return { durationMs: performance.now() - this.#beganMs, exceededMs: this.#exceededMs };
  }
}
