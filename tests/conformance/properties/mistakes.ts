import type { LockstepErrorCode } from '../../../src/core/errors';
import { expectEqual, expectError, expectFailure } from '../expectations';
import { BAD_CALLER, BAD_CALLS_SIZE, opOf } from '../programs/bad-call';
import { badCalls } from '../programs/bad-calls';
import { mismatchedCalls, MISMATCH_SIZE, ODD_RANK } from '../programs/mismatched-calls';
import type { Property } from '../property';

const MISMATCH: LockstepErrorCode = 'LOCKSTEP_MISMATCH';
const CLOSED: LockstepErrorCode = 'LOCKSTEP_CLOSED';

/** One line a rank: rank 0 and the last say the usual call, the odd rank the odd one. */
function linesByRank([usual, odd]: readonly [RegExp, RegExp]): RegExp[] {
  return Array.from(
    { length: MISMATCH_SIZE },
    (_unused, rank) => new RegExp(`rank ${rank}\\b.*${(rank === ODD_RANK ? odd : usual).source}`),
  );
}

const refusingOps = [...new Set(Object.keys(badCalls).map(opOf))];

export const mistakeProperties: readonly Property[] = [
  ...refusingOps.map((op): Property => ({
    title: `${op}: every bad argument is refused before anything is sent, and the group goes on`,
    async check(worlds) {
      const names = Object.keys(badCalls).filter((name) => opOf(name) === op);
      const byRank = await worlds.results(BAD_CALLS_SIZE, 'refusals', { names });
      const problems: string[] = [];
      byRank.flat().forEach(({ name, error, sumAfterwards }) => {
        try {
          if (error === 'accepted') throw new Error(`${name}: it was accepted`);
          const says = [badCalls[name]?.message as RegExp];
          if (error !== null) expectError(name, error, { code: 'LOCKSTEP_INVALID_ARGUMENT', says });
          expectEqual(`${name}: the sum afterwards`, sumAfterwards, BAD_CALLS_SIZE);
        } catch (problem) {
          problems.push((problem as Error).message);
        }
      });
      if (problems.length > 0) throw new Error(problems.join('\n'));
      expectEqual(
        'calls made',
        byRank[BAD_CALLER]?.every(({ error }) => error !== null),
        true,
      );
    },
  })),
  ...Object.entries(mismatchedCalls).map(([name, { says }]): Property => ({
    title: `ranks that disagree by ${name} all get an error that lists what each called; only their group ends`,
    async check(worlds) {
      const byRank = await worlds.results(MISMATCH_SIZE, 'mismatches', { names: [name] });
      byRank.forEach((results, rank) => {
        const [{ endings, later, world }] = results as [(typeof results)[number]];
        const where = `${name}, rank ${rank}`;
        const [first, ...others] = endings;
        // The source of a broadcast may have finished before it could know; it learns at its next call.
        if (first?.ok !== true || !/broadcast|scatter/.test(name)) {
          expectFailure(where, first, { code: MISMATCH, says: linesByRank(says) });
        }
        for (const other of others) {
          if (other.ok && rank === 0 && name === 'the same collectives in another order') continue; // a source, too
          expectFailure(`${where}, in flight too`, other, { code: [MISMATCH, CLOSED] });
        }
        expectFailure(`${where}, later`, later, { code: CLOSED, cause: { code: MISMATCH } });
        expectEqual(`${where}: the world`, world, MISMATCH_SIZE);
      });
    },
  })),
  {
    title: 'a mismatch is told at once, though a rank has not called yet; that rank learns when it calls',
    async check(worlds) {
      const byRank = await worlds.results(3, 'mismatchBeforeTheLast', undefined);
      const says = [/rank 0\b.*allReduce/, /rank 1\b.*broadcast/, /rank 2\b.*not called yet/];
      expectFailure('rank 0', byRank[0]?.first, { code: MISMATCH, says });
      expectFailure('rank 1', byRank[1]?.first, { code: MISMATCH, says });
      expectFailure('rank 2', byRank[2]?.first, { code: CLOSED, cause: { code: MISMATCH } });
      expectEqual(
        'the world',
        byRank.map(({ world }) => world),
        [3, 3, 3],
      );
    },
  },
  {
    title: 'a Work that fails while nobody awaits it ends no process, and the next call says what it was',
    async check(worlds) {
      const byRank = await worlds.results(3, 'unawaitedMismatch', undefined);
      byRank.forEach(({ first, later }, rank) => {
        expectFailure(`rank ${rank}, later`, later, { code: CLOSED, cause: { code: MISMATCH, says: /Max/ } });
        expectFailure(`rank ${rank}, first`, first, { code: [MISMATCH, CLOSED] }); // closed if it called after the others
      });
    },
  },
];
