/** What a rank left behind when its function returned. */
import { InvalidArgumentError } from '../../core/errors';
import type { Work } from '../../core/work';
import type { MockRank } from './mock-rank';

/** A call that somebody should await. */
export interface LaunchedCall {
  readonly work: Work;
  /** The call, its group and its source line. */
  readonly title: string;
}

/** When so many calls are known, those that were awaited are forgotten. */
const PRUNE_AT = 256;

/** Calls of a rank that nobody has awaited so far. One that was is forgotten at once: its buffers may be large. */
export class UnawaitedCalls {
  readonly #calls = new Set<LaunchedCall>();
  #pruneAt = PRUNE_AT;

  add(call: LaunchedCall): void {
    this.#calls.add(call);
    if (this.#calls.size < this.#pruneAt) return;
    for (const each of this.#calls) if (each.work.isAwaited) this.#calls.delete(each); // refused ones do not tell
    this.#pruneAt = Math.max(PRUNE_AT, 2 * this.#calls.size);
  }

  forget(call: LaunchedCall): void {
    this.#calls.delete(call);
  }

  list(): LaunchedCall[] {
    return [...this.#calls].filter((call) => !call.work.isAwaited);
  }

  clear(): void {
    this.#calls.clear();
  }
}

/** The error for a rank that returned too early: a backward() or step() still at work, a Work not awaited, a call in flight, a group left open. */
export function misuseAtReturn(rank: MockRank): Error | undefined {
  const place = `rank ${rank.globalRank} returned`;
  const [call] = rank.callsInFlight;
  if (call !== undefined) {
    const line = call.site.sourceLine;
    return misuse(
      `${place} while its ${call.name}${line === undefined ? '' : `, at ${line},`} is still at work. Write \`await\` before it.`,
    );
  }
  const [unawaited, ...more] = rank.unawaited.list();
  if (unawaited !== undefined) {
    const others = more.length === 0 ? '' : ` (and ${more.length} more)`;
    return misuse(
      `${place}, but nobody awaited its ${unawaited.title}${others}. Await every Work before the end: only then is the result there, or the failure heard.`,
    );
  }
  const pending = [...rank.calls].find((call) => !call.isComplete);
  if (pending !== undefined) {
    return misuse(
      `${place} while its ${pending.title} is still in flight. Await it, and whatever started it, before the end.`,
    );
  }
  const [wait] = rank.storeWaits;
  if (wait !== undefined) {
    return misuse(`${place} while its ${wait.title} still waits. Await it, or whatever started it, before the end.`);
  }
  const [open] = rank.openGroups;
  if (open !== undefined) {
    const others = rank.openGroups.size === 1 ? '' : ` (and ${rank.openGroups.size - 1} more)`;
    return misuse(
      `${place} and left group ${open.groupId}${others} open. Close each group that you make, in a finally block: await group.close().`,
    );
  }
  return undefined;
}

function misuse(message: string): Error {
  return new InvalidArgumentError(message);
}
