/** A process that is there but says nothing: the deadline names it; one that only computes is waited for. */
import { expectEqual, expectFailure, expectSuccess } from '../../conformance/expectations';
import { count } from '../../helpers/counts';
import { AT_ONCE_MS, closeAll, expectNamed, Jobs, NO_DEADLINE_MS, PLANES, type Rank } from './job';

const jobs = new Jobs();
afterAll(() => jobs.close());

const FOREVER = 1_000_000;
const TIMEOUT_MS = 1500;
/** Longer than anything in a connection or between two ranks waits without a deadline. */
const BUSY_MS = count('fault: milliseconds that a rank computes without yielding', 2000, 4000);

describe.each(PLANES.slice(0, count('fault: silent ranks: data planes', 1, 2)))('over %s', (plane) => {
  test.each([0, 1])(
    'a stopped rank %i is named at the deadline by every other rank, and ends well once it goes on',
    async (victim) => {
      const ranks = await jobs.start(3, { dataPlane: plane, timeoutMs: TIMEOUT_MS });
      await Promise.all(ranks.map((rank) => rank.call('splitOff', { victim })));
      const stopped = ranks[victim] as Rank;
      const ends = ranks.map((rank) => rank.call('loop', { elements: 1000, rounds: FOREVER }));
      await new Promise((resolve) => setTimeout(resolve, 100));
      stopped.kill('SIGSTOP');
      const stoppedAtMs = Date.now();
      const survivors = ends.filter((_unused, rank) => rank !== victim);
      const results = await Promise.all(survivors);
      results.forEach((end, index) => {
        const where = `rank ${index < victim ? index : index + 1} (${plane})`;
        const says = [/within 1500 ms/, new RegExp(`Rank ${victim} did not arrive.* \\(and does not answer\\)`)];
        expectNamed(where, end.error, [victim], { code: 'LOCKSTEP_TIMEOUT', says });
        expectFailure(`${where}, later`, end.later, { code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_TIMEOUT' } });
        expectSuccess(`${where}, in the group without it`, end.others);
        const afterMs = end.endedAtMs - stoppedAtMs;
        if (afterMs < TIMEOUT_MS - 200 || afterMs > TIMEOUT_MS + AT_ONCE_MS)
          throw new Error(`${where}: learnt after ${afterMs} ms`);
      });
      stopped.kill('SIGCONT');
      const end = await ends[victim];
      expectEqual(
        'the stopped rank learns too',
        end?.error?.code === 'LOCKSTEP_CLOSED' || end?.error?.code === 'LOCKSTEP_TIMEOUT',
        true,
      );
      await closeAll(ranks);
    },
    60_000,
  );

  test.each([0, 2])(
    'ranks close within about a second while rank %i is stopped',
    async (victim) => {
      const ranks = await jobs.start(3, { dataPlane: plane });
      (ranks[victim] as Rank).kill('SIGSTOP');
      const start = performance.now();
      await closeAll(ranks.filter((_unused, rank) => rank !== victim));
      expect(performance.now() - start).toBeLessThan(1900);
      (ranks[victim] as Rank).kill('SIGCONT');
      await closeAll(ranks.slice(victim, victim + 1));
    },
    60_000,
  );

  test(`a rank that computes for ${BUSY_MS} ms without yielding is not taken for dead, and its transfers are right`, async () => {
    const ranks = await jobs.start(3, { dataPlane: plane, timeoutMs: NO_DEADLINE_MS });
    const wrong = await Promise.all(
      ranks.map((rank, index) =>
        rank.call('sumAfterComputing', { busyMs: index === 1 ? BUSY_MS : 0, mib: 16 }, 60_000),
      ),
    );
    expect(wrong).toEqual([0, 0, 0]);
    await closeAll(ranks);
  }, 60_000);
});
