/**
 * Deadlocks, found when nothing runs any more.
 *
 * [Note: deadlock] Looked for when all microtasks have run. A rank that awaits at least one call, and that nothing
 * outside the world can wake ([Note: live resources]), is waiting; every other rank that has not finished can go on.
 * From these it spreads: a call can complete if all ranks that it misses can go on (and, in portable mode, all calls
 * ahead of it can complete); a waiting rank can go on if one of the calls that it awaits can complete. Whoever is left
 * waits for ranks that have finished or that are left themselves: a greatest fixpoint, so nobody is accused whom
 * anything could still wake.
 *
 * [Note: second look] What is found is believed if nothing has happened 50 ms later. Node does not tell of everything
 * that may wake a rank, and a rank that awaits a call may await such a thing at the same time (`Promise.all`).
 */
import { DeadlockError } from '../../core/errors';
import type { MockCall } from './mock-call';
import type { MockRank } from './mock-rank';
import type { MockWorld } from './mock-world';
import { awaitedCalls, describeReturn, describeWait, listRanks, missingMembers } from './standing';

/** Ranks that wait for a call of theirs. */
export function waitingRanks(world: MockWorld): MockRank[] {
  return world.ranks.filter((rank) => !rank.isFinished && awaitedCalls(rank).length > 0);
}

/** Give every rank that can never go on a DeadlockError. */
export function breakDeadlock(stuck: readonly MockRank[]): void {
  const calls = stuck.flatMap(awaitedCalls);
  const message = deadlockMessage(stuck, calls);
  const ranks = stuck.map((rank) => rank.globalRank);
  for (const group of new Set(calls.map((call) => call.group))) {
    group.fail((rank, call) => {
      const { op, sequence } = call ?? {};
      return new DeadlockError(message, { rank, group: group.id, op, sequence, ranks });
    });
  }
}

/** Ranks that can never go on. */
export function stuckRanks(world: MockWorld): MockRank[] {
  const waiting = waitingRanks(world).filter((rank) => !world.canBeWoken(rank));
  if (waiting.length === 0) return [];
  const canGoOn = new Set(world.ranks.filter((rank) => !rank.isFinished && !waiting.includes(rank)));
  const completable = new Set<MockCall>();
  const calls = world.ranks.flatMap((rank) => [...rank.calls]);
  for (let size = -1; size !== canGoOn.size + completable.size;) {
    size = canGoOn.size + completable.size;
    for (const call of calls) if (canComplete(call, canGoOn, completable)) completable.add(call);
    for (const rank of waiting) if (awaitedCalls(rank).some((call) => completable.has(call))) canGoOn.add(rank);
  }
  return waiting.filter((rank) => !canGoOn.has(rank));
}

function canComplete(call: MockCall, canGoOn: ReadonlySet<MockRank>, completable: ReadonlySet<MockCall>): boolean {
  if (call.isComplete || call.isHeld) return true;
  return (
    call.missingRanks().every((rank) => canGoOn.has(call.group.memberAt(rank))) &&
    call.callsAhead().every((ahead) => completable.has(ahead))
  );
}

function deadlockMessage(stuck: readonly MockRank[], calls: readonly MockCall[]): string {
  const missing = new Set(calls.flatMap(missingMembers));
  const gone = [...missing].filter((rank) => rank.isFinished);
  const goneLines = gone.map((rank) => `  rank ${rank.globalRank} ${describeReturn(rank)}`);
  const hasSubgroup = calls.some((call) => call.group !== call.group.world.root);
  const legend = hasSubgroup ? ['Inside a call ranks are those of its group, elsewhere those of the world.'] : [];
  return [headline(stuck, gone, calls), ...stuck.flatMap(waitLines), ...goneLines, ...legend, advice(gone, calls)].join(
    '\n',
  );
}

/** More calls of one rank than this are only counted. */
const MAX_LINES_PER_RANK = 4;

function waitLines(rank: MockRank): string[] {
  const calls = awaitedCalls(rank);
  const lines = calls.slice(0, MAX_LINES_PER_RANK).map((call) => `in ${call.title}, ${describeWait(call)}`);
  const numMore = calls.length - lines.length;
  return [...lines, ...(numMore > 0 ? [`in ${numMore} more`] : [])].map(
    (line) => `  rank ${rank.globalRank} waits ${line}`,
  );
}

function headline(stuck: readonly MockRank[], gone: readonly MockRank[], calls: readonly MockCall[]): string {
  const waiters = listRanks(stuck);
  if (gone.length > 0) {
    return `deadlock: ${listRanks(gone)} returned early, and ${waiters} wait${stuck.length === 1 ? 's' : ''} in vain:`;
  }
  return calls.some(isOnlyBehind)
    ? `deadlock in portable mode: ${waiters} would hang on NCCL, which runs each rank's calls one by one in the order in which they were made:`
    : `deadlock: ${waiters} wait for each other:`;
}

function advice(gone: readonly MockRank[], calls: readonly MockCall[]): string {
  if (gone.length > 0) {
    return 'Every rank of a group must make the same number of calls: look for a loop, a condition or an early return that differs between ranks.';
  }
  return calls.some(isOnlyBehind)
    ? 'Make calls of different groups in the same order on all ranks, and put sends and receives that cross each other into one batch().'
    : 'Make the calls in the same order on all ranks; put sends and receives that cross each other into one batch().';
}

function isOnlyBehind(call: MockCall): boolean {
  return call.missingRanks().length === 0 && call.callsAhead().length > 0;
}
