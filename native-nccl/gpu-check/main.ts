/**
 * All checks, a line each, and a report in JSON. Exit 0: none failed, 1: some did, 2: nothing could be checked.
 *
 *     node main.js [group...]        default: all groups
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { CheckResult } from './check';
import { resultLine, say } from './check';
import { CHECK_GROUPS, findGroup } from './check-table';
import { describeMachine, machineLines } from './machine';
import { runGroup } from './run-group';

/** Whoever lends a GPU bounds the run; what has not begun then has failed. */
const TOTAL_LIMIT_MS = 165_000;

async function main(): Promise<void> {
  const startedAt = new Date().toISOString();
  const names = process.argv.slice(2);
  const groups = names.length === 0 ? CHECK_GROUPS : names.map(findGroup);
  const folder = resolve(process.env['OUT'] ?? '.');
  mkdirSync(folder, { recursive: true });
  const reportPath = join(folder, 'report.json');
  const logPath = join(folder, 'check.log');
  writeFileSync(logPath, '');

  const machine = describeMachine();
  for (const line of machineLines(machine)) say(line);
  const results: CheckResult[] = [];
  const write = (isComplete: boolean): void => {
    const counts = count(results);
    const durationMs = Math.round(performance.now());
    const report = {
      isStandIn: machine.isStandIn,
      isComplete,
      counts,
      startedAt,
      durationMs,
      machine,
      checks: results,
    };
    writeFileSync(reportPath, `${JSON.stringify(report, null, 2)}\n`);
  };
  const environment = { ...process.env, ...machine.environment };
  for (const group of groups) {
    await runGroup(group, {
      dueMs: TOTAL_LIMIT_MS,
      logPath,
      environment,
      onResult: (result) => {
        results.push(result);
        say(resultLine(result));
        for (const line of noteLines(result)) say(line);
      },
    });
    write(false); // so that a run that is cut short leaves what it has
  }
  write(true);
  const { ok, failed, skipped } = count(results);
  const kind = machine.isStandIn ? ' (on the CPU stand-ins, not on a GPU)' : '';
  say(`${ok} ok, ${failed} failed, ${skipped} skipped${kind}; ${reportPath}`);
  process.exitCode = failed > 0 ? 1 : 0;
}

function count(results: readonly CheckResult[]): {
  readonly ok: number;
  readonly failed: number;
  readonly skipped: number;
} {
  const of = (outcome: CheckResult['outcome']): number => results.filter((result) => result.outcome === outcome).length;
  return { ok: of('ok'), failed: of('failed'), skipped: of('skipped') };
}

/** Numbers are what timings are for, so they are shown. */
function noteLines({ notes = {} }: CheckResult): string[] {
  return Object.entries(notes).map(([name, value]) => {
    const text = typeof value === 'number' ? String(Number(value.toPrecision(4))) : JSON.stringify(value);
    return `          ${name} ${text}`;
  });
}

main().catch((error: unknown) => {
  say(`FAILED  the checks could not be run: ${error instanceof Error ? error.stack : String(error)}`);
  process.exitCode = 2;
});
