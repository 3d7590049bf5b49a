import type { LockstepErrorCode } from '../../../src/core/errors';
import { expectEqual, expectFailure, expectSuccess } from '../expectations';
import { TIMED_CALLS } from '../programs/failures';
import type { Property } from '../property';

const CLOSED: LockstepErrorCode = 'LOCKSTEP_CLOSED';
const TIMEOUT: LockstepErrorCode = 'LOCKSTEP_TIMEOUT';
const PEER_LOST: LockstepErrorCode = 'LOCKSTEP_PEER_LOST';

/** A deadline is not for measuring speed: this only tells "at the deadline" from "much later". */
const SLACK_MS = 5000;

function expectWithin(where: string, elapsedMs: number, timeoutMs: number): void {
  // Timers count whole milliseconds.
  if (elapsedMs >= timeoutMs - 2 && elapsedMs < timeoutMs + SLACK_MS) return;
  throw new Error(`${where}: ended after ${elapsedMs} ms, expected ${timeoutMs}`);
}

export const failureProperties: readonly Property[] = [
  {
    title: 'a call whose deadline passes names itself, its sequence number and the ranks that did not arrive',
    async check(worlds) {
      const timeoutMs = 60;
      const byRank = await worlds.results(3, 'lateRank', { calls: TIMED_CALLS, timeoutMs, lateMs: 700 });
      TIMED_CALLS.forEach((call, index) => {
        const { ending, elapsedMs, sequence, later } = byRank[0]?.[index] ?? {};
        const error = expectFailure(call, ending, { code: TIMEOUT, says: [new RegExp(call), /rank(s?) .*2/] });
        expectWithin(call, elapsedMs ?? 0, timeoutMs);
        expectEqual(`${call}: ranks`, error.ranks, [2]);
        expectEqual(`${call}: op`, error.op, call);
        if (sequence !== null) expectEqual(`${call}: sequence`, error.sequence, sequence);
        if (sequence !== null)
          expectEqual(`${call}: says its sequence`, error.message.includes(String(sequence)), true);
        expectFailure(`${call}, later`, later, { code: CLOSED, cause: { code: TIMEOUT } });
        if (sequence === null) return; // nobody else was in a call of point to point
        const late = byRank[2]?.[index];
        expectFailure(`${call}, on the late rank`, late?.ending, { code: CLOSED, cause: { code: TIMEOUT } });
      });
    },
  },
  {
    title: 'the deadline of the world holds where a call gives none',
    async check(worlds) {
      const byRank = await worlds.results(2, 'lateRankInWorld', { lateMs: 250 }, 60);
      expectFailure('rank 0', byRank[0]?.ending, { code: TIMEOUT, says: [/allReduce/, /rank(s?) .*1/] });
      expectWithin('rank 0', byRank[0]?.elapsedMs ?? 0, 60);
      expectFailure('rank 1', byRank[1]?.ending, { code: CLOSED, cause: { code: TIMEOUT } });
    },
  },
  {
    title: 'a wait that gives up leaves the call in flight',
    async check(worlds) {
      const byRank = await worlds.results(2, 'impatientWait', { lateMs: 60 });
      expectFailure('wait', byRank[0]?.first, { code: TIMEOUT, says: [/still in flight/] });
      expectEqual('completed then', byRank[0]?.isCompleted, false);
      expectEqual(
        'the sum',
        byRank.map(({ sum }) => sum),
        [2, 2],
      );
    },
  },
  {
    title: 'ranks that wait for one that closes get a typed error',
    async check(worlds) {
      for (const size of [2, 3]) {
        const byRank = await worlds.results(size, 'closeWhileOthersWait', undefined);
        byRank.forEach(({ endings, later }, rank) => {
          const where = `rank ${rank} of ${size}`;
          if (rank < size - 1) expectEqual(`${where}: calls`, endings.length, rank === 0 ? 2 : 1);
          for (const ending of endings)
            expectFailure(where, ending, { code: [CLOSED, PEER_LOST], says: [new RegExp(`rank ${size - 1}\\b`)] });
          expectFailure(`${where}, later`, later, { code: CLOSED });
        });
      }
    },
  },
  {
    title: 'ranks that close as soon as their last call is done do not fail it for the others',
    async check(worlds) {
      for (const size of [2, 4]) {
        const byRank = await worlds.results(size, 'closeAtOnce', { rounds: 20 });
        byRank.flat().forEach((ending) => expectSuccess(`on ${size} ranks`, ending));
      }
    },
  },
  {
    title: 'close fails the rank’s own calls in flight',
    async check(worlds) {
      const byRank = await worlds.results(2, 'closeWithOwnCallPending', undefined);
      expectFailure('rank 0', byRank[0], { code: CLOSED });
    },
  },
  {
    title: 'every call after close is refused, and closing or aborting again does nothing',
    async check(worlds) {
      for (const size of [1, 3]) {
        const byRank = await worlds.results(size, 'callsAfterClose', undefined);
        byRank
          .flat()
          .forEach(({ call, ending }) => expectFailure(`${call} on ${size} ranks`, ending, { code: CLOSED }));
      }
    },
  },
  {
    title: 'abort reaches every rank, in a call or later, with the reason as the cause; only its group ends',
    async check(worlds) {
      const reason = 'the operator stopped the job';
      const byRank = await worlds.results(3, 'abort', { reason });
      byRank.forEach(({ first, later, world }, rank) => {
        for (const ending of [first, later])
          expectFailure(`rank ${rank}`, ending, { code: CLOSED, cause: { says: new RegExp(reason) } });
        expectSuccess(`rank ${rank}: the world`, world);
      });
    },
  },
  {
    title: 'a rank that throws is named to all groups that hold it at once, with what it said; others go on',
    async check(worlds) {
      const message = 'rank 1 found no data';
      const outcomes = await worlds.outcomes(3, 'lostRank', { message });
      for (const rank of [0, 2]) {
        const outcome = outcomes[rank];
        if (outcome?.returned !== true) throw new Error(`rank ${rank} threw ${JSON.stringify(outcome)}`);
        const { world, group, later, others } = outcome.value;
        const says = [/rank 1\b/, new RegExp(message)];
        const error = expectFailure(`rank ${rank}`, world, { code: PEER_LOST, says });
        expectEqual(`rank ${rank}: ranks`, error.ranks, [1]);
        if (rank === 0) expectFailure('its group [0, 1]', group, { code: PEER_LOST, says });
        expectFailure(`rank ${rank}, later`, later, { code: CLOSED, cause: { code: PEER_LOST } });
        expectEqual('its group [0, 2]', others, 2);
      }
      expectEqual('rank 1 threw', outcomes[1]?.returned, false);
    },
  },
];
