/**
 * Deadlocks, found when nothing runs any more.
 *
 * [Note: deadlock] Looked for when all microtasks have run. A rank that awaits at least one call, and that nothing
 * outside the world can wake ([Note: live resources]), is waiting; every other rank that has not finished can go on.
 * From these it spreads: a call can complete if all ranks that it misses can go on (and, in portable mode, all calls
 * ahead of it can complete); a waiting rank can go on if one of the calls that it awaits can complete. Whoever is left
 * waits for ranks that have finished or that are left themselves: a greatest fixpoint, so nobody is accused whom
 * anything could still wake. A wait in the store can complete if any rank can go on, since any may set the key; of a bare
 * rank nobody knows.
 *
 * [Note: second look] What is found is believed if nothing has happened 50 ms later. Node does not tell of everything
 * that may wake a rank, and a rank that awaits a call may await such a thing at the same time (`Promise.all`).
 */
import { DeadlockError } from '../../core/errors';
import type { MockCall } from './mock-call';
import type { MockRank } from './mock-rank';
import type { MockWorld } from './mock-world';
import { awaitedCalls, describeReturn, describeWait, listRanks, missingMembers } from './standing';
import { awaitedStoreWaits } from './store-wait';

/** Ranks that wait for a call of theirs, or in the store. */
export function waitingRanks(world: MockWorld): MockRank[] {
  return world.ranks.filter((rank) => !rank.isFinished && (awaitedCalls(rank).length > 0 || isInStore(rank)));
}

function isInStore(rank: MockRank): boolean {
  return awaitedStoreWaits(rank).length > 0;
}

/** Give every rank that can never go on a DeadlockError. */
export function breakDeadlock(world: MockWorld, stuck: readonly MockRank[]): void {
  const calls = stuck.flatMap(awaitedCalls);
  const message = deadlockMessage(world, stuck, calls);
  const globalRanks = stuck.map((rank) => rank.globalRank);
  for (const wait of stuck.flatMap(awaitedStoreWaits)) {
    wait.fail(new DeadlockError(message, { rank: wait.owner.globalRank, op: wait.op, ranks: globalRanks }));
  }
  for (const group of new Set(calls.map((call) => call.group))) {
    const ranks = stuck.map((rank) => group.members.indexOf(rank)).filter((rank) => rank >= 0);
    group.fail((rank, call) => {
      const { op, sequence } = call ?? {};
      return new DeadlockError(message, { rank, group: group.id, op, sequence, ranks, globalRanks });
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
  const isAnyBare = world.ranks.some((rank) => rank.state.kind === 'bare' && !world.store.isClosedBy(rank));
  for (let size = -1; size !== canGoOn.size + completable.size;) {
    size = canGoOn.size + completable.size;
    for (const call of calls) if (canComplete(call, canGoOn, completable)) completable.add(call);
    const mayBeSet = isAnyBare || canGoOn.size > 0;
    for (const rank of waiting) {
      const isFree = awaitedCalls(rank).some((call) => completable.has(call)) || (mayBeSet && isInStore(rank));
      if (isFree) canGoOn.add(rank);
    }
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

function deadlockMessage(world: MockWorld, stuck: readonly MockRank[], calls: readonly MockCall[]): string {
  const missing = stuck.some(isInStore) ? world.ranks : new Set(calls.flatMap(missingMembers));
  const gone = [...missing].filter((rank) => rank.isFinished);
  const isRenumbered = calls.some((call) => call.group.ranks.isRenumbered);
  const word = isRenumbered ? 'global rank' : 'rank';
  return [
    headline(stuck, gone, calls, word),
    ...stuck.flatMap((rank) => waitLines(rank, word)),
    ...gone.map((rank) => `  ${word} ${rank.globalRank} ${describeReturn(rank)}`),
    advice(stuck, gone, calls),
  ].join('\n');
}

/** More calls of one rank than this are only counted. */
const MAX_LINES_PER_RANK = 4;

function waitLines(rank: MockRank, word: string): string[] {
  const name = `${word} ${rank.globalRank}`;
  const all = [
    ...awaitedCalls(rank).map(
      (call) => `${call.group.ranks.name(call.rank)} waits in ${call.title}, ${describeWait(call)}`,
    ),
    ...awaitedStoreWaits(rank).map(({ title }) => `${name} waits in ${title}, for a value that nobody will set`),
  ];
  const lines = all.slice(0, MAX_LINES_PER_RANK);
  const numMore = all.length - lines.length;
  return [...lines, ...(numMore > 0 ? [`${name} waits in ${numMore} more`] : [])].map((line) => `  ${line}`);
}

function headline(
  stuck: readonly MockRank[],
  gone: readonly MockRank[],
  calls: readonly MockCall[],
  word: string,
): string {
  const waiters = listRanks(stuck, word);
  if (gone.length > 0) {
    return `deadlock: ${listRanks(gone, word)} returned early, and ${waiters} wait${stuck.length === 1 ? 's' : ''} in vain:`;
  }
  return calls.some(isOnlyBehind)
    ? `deadlock in portable mode: ${waiters} would hang on NCCL, which runs each rank's calls one by one in the order in which they were made:`
    : `deadlock: ${waiters} ${stuck.length === 1 ? 'waits in vain' : 'wait for each other'}:`;
}

function advice(stuck: readonly MockRank[], gone: readonly MockRank[], calls: readonly MockCall[]): string {
  if (stuck.some(isInStore)) {
    return 'A key must be set by a rank that neither returns before nor waits for the rank that needs it: look for a misspelt key or prefix, a condition, an early return.';
  }
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
