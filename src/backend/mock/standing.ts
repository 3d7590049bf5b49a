/** What a rank is doing, in words. */
import type { MockCall } from './mock-call';
import type { MockRank } from './mock-rank';
import { awaitedStoreWaits } from './store-wait';

/** As `rank 1 waits in barrier(), collective 3 of group world, at train.ts:7:3, for rank 0`. */
export function describeStanding(rank: MockRank): string {
  const name = `rank ${rank.globalRank}`;
  switch (rank.state.kind) {
    case 'returned':
      return `${name} ${describeReturn(rank)}`;
    case 'lost':
      return `${name} is lost: ${rank.state.error.message}`;
    case 'bare':
    case 'running': {
      const awaited = awaitedCalls(rank).map((call) => `${call.title}, ${describeWait(call)}`);
      awaited.push(...awaitedStoreWaits(rank).map((wait) => wait.title));
      if (awaited.length > 0) return `${name} waits in ${awaited.join('; and in ')}`;
      return `${name} is running; ${describeLatest(rank)}`;
    }
  }
}

/** As `has returned and will make no more calls; its last was barrier(), ...`. */
export function describeReturn(rank: MockRank): string {
  return `has returned and will make no more calls; ${describeLatest(rank)}`;
}

/** What a call waits for, as `for ranks 1, 2`. */
export function describeWait(call: MockCall): string {
  const missing = call.missingRanks();
  if (call.isHeld) return 'held up by a fault';
  if (missing.length > 0) return `for ${call.group.ranks.names(missing)}`;
  const [ahead] = call.callsAhead();
  return ahead === undefined ? 'which is done' : `behind ${ahead.title} of ${ahead.group.ranks.name(ahead.rank)}`;
}

/** Members of the call's group that it still waits for. */
export function missingMembers(call: MockCall): MockRank[] {
  return call.missingRanks().map((rank) => call.group.memberAt(rank));
}

/** Calls in flight that somebody waits for. */
export function awaitedCalls(rank: MockRank): MockCall[] {
  return [...rank.calls].filter((call) => call.isAwaited);
}

/** As `ranks 0, 2`, or `global ranks 0, 2`: ranks of the world. */
export function listRanks(ranks: readonly MockRank[], word: string): string {
  return `${word}${ranks.length === 1 ? '' : 's'} ${ranks.map((rank) => rank.globalRank).join(', ')}`;
}

function describeLatest({ latestCall }: MockRank): string {
  if (latestCall === undefined) return 'it made no call';
  return `its last call was ${latestCall.title}, ${latestCall.isSettled ? 'which is done' : describeWait(latestCall)}`;
}
