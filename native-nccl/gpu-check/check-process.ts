/**
 * One process of checks: those of a group, from an index on, one after the other. It only tells the runner what happened;
 * that a check hangs or ends the process is the runner's business. After a check that failed it leaves at once: what comes
 * next should not suffer from what that one left.
 */
import { Bench, describeFailure } from './bench';
import { Skipped, type Check, type CheckMessage, type Verdict } from './check';
import { findGroup } from './check-table';

const [, , groupName, firstIndex] = process.argv;

async function main(): Promise<void> {
  const { checks } = findGroup(groupName as string);
  const bench = new Bench(Number(firstIndex) > 0);
  for (const check of checks.slice(Number(firstIndex))) {
    await tell({ kind: 'begun' });
    const verdict = await runOne(check, bench);
    await tell({ kind: 'ended', verdict: { ...verdict, notes: bench.takeNotes() } });
    if (verdict.outcome === 'failed') process.exit(0);
  }
  let reason: string | undefined;
  try {
    await bench.close();
  } catch (error) {
    reason = describeFailure(error);
  }
  await tell({ kind: 'closed', reason });
  // From here the process has to end by itself.
  process.disconnect?.();
}

async function runOne(check: Check, bench: Bench): Promise<Verdict> {
  const startedMs = performance.now();
  try {
    await check.run(bench);
    return { outcome: 'ok', durationMs: performance.now() - startedMs };
  } catch (error) {
    const durationMs = performance.now() - startedMs;
    if (error instanceof Skipped) return { outcome: 'skipped', durationMs, reason: error.message };
    return { outcome: 'failed', durationMs, reason: describeFailure(error) };
  }
}

/** Waits until it is written: a check may kill the process. */
function tell(message: CheckMessage): Promise<void> {
  return new Promise((settle, reject) => {
    if (process.send === undefined) return settle();
    process.send(message, (error: Error | null) => (error === null ? settle() : reject(error)));
  });
}

void main();
