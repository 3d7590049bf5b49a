/** A process that is gone or silent while its GPU works with the others': they learn at once, by name. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import { Generator } from '../../../src/core/generator';
import { expectEqual, expectFailure, expectSuccess } from '../../conformance/expectations';
import { count } from '../../helpers/counts';
import { describeNative } from '../../helpers/native-build';
import { AT_ONCE_MS, expectNamed } from './job';
import type { LoopEnd } from './loop';
import { closeAll, NcclJobs, type NcclRank } from './nccl-job';

const FOREVER = 1_000_000;
const TIMEOUT_MS = 1500;
const KILLS = count('fault on nccl: kill -9 of a rank at a random moment', 4, 60);
/** What NCCL itself sees of the death of a peer: nothing, as on one machine, or an error, as over a network. */
const DEATHS = ['hang', 'error'] as const;

interface Loss {
  readonly death: (typeof DEATHS)[number];
  readonly size: number;
  readonly victim: number;
  readonly elements: number;
}

describeNative('nccl on the stand-ins', ['addon', 'stand-ins'], (folder) => {
  const jobs = new NcclJobs(folder);
  afterEach(() => expect(jobs.takeReport()).toBe(''));
  afterAll(() => jobs.close());

  /** Start collectives on all ranks, let `lose` end the victim in the middle, and check what the others have to say. */
  async function checkLoss(loss: Loss, lose: (victim: NcclRank) => Promise<void>, says: RegExp[] = []): Promise<void> {
    const { death, size, victim, elements } = loss;
    const ranks = await jobs.start(size, {}, { STANDIN_NCCL_PEER_DEATH: death });
    // The stand-ins' hub is in the process of rank 0, and all communicators end with it: no other group could go on.
    const hasOthers = victim !== 0;
    if (hasOthers) await Promise.all(ranks.map((rank) => rank.call('splitOff', { victim })));
    const survivors = ranks.filter((_unused, rank) => rank !== victim);
    const ends = survivors.map((rank) => rank.call('loop', { elements, rounds: FOREVER }));
    const lost = (ranks[victim] as NcclRank).call('loop', { elements, rounds: FOREVER }).catch(() => undefined);
    await lose(ranks[victim] as NcclRank);
    const lostAtMs = Date.now();
    const results: LoopEnd[] = await Promise.all(ends);
    await lost;
    results.forEach((end, index) => {
      const where = `rank ${index < victim ? index : index + 1} of ${size} (${death})`;
      expectNamed(where, end.error, [victim], { code: 'LOCKSTEP_PEER_LOST', says });
      expectFailure(`${where}, later`, end.later, { code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_PEER_LOST' } });
      if (hasOthers) expectSuccess(`${where}, in the group without it`, end.others);
      const afterMs = end.endedAtMs - lostAtMs;
      if (afterMs > AT_ONCE_MS) throw new Error(`${where}: learnt after ${afterMs} ms`);
    });
    await closeAll(survivors);
  }

  test.each(Array.from({ length: KILLS }, (_unused, seed) => seed))(
    'kill -9, seed %i',
    async (seed) => {
      const random = new Generator(seed);
      const size = 2 + random.nextBelow(3);
      const victim = random.nextBelow(size);
      const elements = [10, 1000, 300_000][random.nextBelow(3)] as number;
      const delayMs = random.nextBelow(150);
      const death = DEATHS[seed % 2] as Loss['death'];
      await checkLoss({ death, size, victim, elements }, async (rank) => {
        await sleepMs(delayMs);
        rank.kill('SIGKILL');
        await rank.ended;
      });
    },
    60_000,
  );

  test('a rank that throws and catches nothing ends as usual, and is named to the others with what it threw', async () => {
    const says = [/rank 1 of group world\S* was lost: it threw RangeError: no data$/];
    const throwUncaught = async (rank: NcclRank): Promise<void> => {
      await sleepMs(30);
      rank.call('throwUncaught', { message: 'no data' }).catch(() => undefined);
      expectEqual('exit code', (await rank.ended).code, 1);
      expect(rank.output).toMatch(/throw new RangeError[^]*RangeError: no data\n {4}at /);
    };
    await checkLoss({ death: 'hang', size: 3, victim: 1, elements: 1000 }, throwUncaught, says);
  });

  test.each([
    ['well', 0, 'hang'],
    ['badly', 3, 'error'],
  ] as const)('a rank that exits %s in mid-collective is named to the others', async (_how, code, death) => {
    await checkLoss({ death, size: 3, victim: 2, elements: 300_000 }, async (rank) => {
      await sleepMs(30);
      rank.call('exit', { code }).catch(() => undefined);
      expectEqual('exit code', (await rank.ended).code, code);
    });
  });

  test('a rank that is lost while nobody calls anything is the error of the next call, and the cause of later ones', async () => {
    const victim = 2;
    const ranks = await jobs.start(3);
    (ranks[victim] as NcclRank).kill('SIGKILL');
    await (ranks[victim] as NcclRank).ended;
    await sleepMs(50);
    const survivors = ranks.filter((_unused, rank) => rank !== victim);
    for (const [rank, survivor] of survivors.entries()) {
      const first = expectFailure(`rank ${rank}`, await survivor.call('next', undefined), {
        code: 'LOCKSTEP_PEER_LOST',
      });
      expectNamed(`rank ${rank}`, first, [victim], { code: 'LOCKSTEP_PEER_LOST' });
      const later = await survivor.call('next', undefined);
      const cause = { code: 'LOCKSTEP_PEER_LOST' } as const;
      expectFailure(`rank ${rank}, later`, later, { code: 'LOCKSTEP_CLOSED', cause });
    }
    await closeAll(survivors);
  });

  test('a rank that aborts its world tells the others its message', async () => {
    const ranks = await jobs.start(3);
    const survivors = ranks.slice(1);
    const ends = survivors.map((rank) => rank.call('loop', { elements: 1000, rounds: FOREVER }));
    await sleepMs(30);
    await (ranks[0] as NcclRank).call('abort', { message: 'no data' });
    for (const end of await Promise.all(ends)) {
      expect(end.error).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { name: 'RangeError', message: 'no data' } });
      expect(end.error?.message).toMatch(/aborted by rank 0: no data/);
    }
    await closeAll(survivors);
  });

  test('a stopped rank is named at the deadline by every other rank, and ends well once it goes on', async () => {
    const victim = 1;
    const ranks = await jobs.start(3, { timeoutMs: TIMEOUT_MS });
    await Promise.all(ranks.map((rank) => rank.call('splitOff', { victim })));
    const ends = ranks.map((rank) => rank.call('loop', { elements: 1000, rounds: FOREVER }));
    await sleepMs(100);
    const stopped = ranks[victim] as NcclRank;
    stopped.kill('SIGSTOP');
    const stoppedAtMs = Date.now();
    const results = await Promise.all(ends.filter((_unused, rank) => rank !== victim));
    results.forEach((end, index) => {
      const where = `rank ${index < victim ? index : index + 1}`;
      const says = [
        /within 1500 ms/,
        new RegExp(`Rank ${victim} (did not arrive.* \\(and does|came to it, but does) not answer`),
      ];
      expectNamed(where, end.error, [victim], { code: 'LOCKSTEP_TIMEOUT', says });
      expectFailure(`${where}, later`, end.later, { code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_TIMEOUT' } });
      expectSuccess(`${where}, in the group without it`, end.others);
      const afterMs = end.endedAtMs - stoppedAtMs;
      if (afterMs < TIMEOUT_MS - 200 || afterMs > TIMEOUT_MS + AT_ONCE_MS)
        throw new Error(`${where}: learnt after ${afterMs} ms`);
    });
    stopped.kill('SIGCONT');
    const end = await ends[victim];
    expect(['LOCKSTEP_CLOSED', 'LOCKSTEP_TIMEOUT']).toContain(end?.error?.code);
    await closeAll(ranks);
  }, 60_000);

  test('a rank that is stopped when it has announced a call, before its data has moved, is named at the deadline', async () => {
    const victim = 1;
    const variables = { STANDIN_NCCL_OP_DELAY_US: '500000' };
    const ranks = await jobs.start(3, { timeoutMs: TIMEOUT_MS }, variables);
    const ends = ranks.map((rank) => rank.call('reduce', { elements: 1000 }));
    await sleepMs(200);
    (ranks[victim] as NcclRank).kill('SIGSTOP');
    const results = await Promise.all(ends.filter((_unused, rank) => rank !== victim));
    results.forEach((ending, index) => {
      const says = [/within 1500 ms\. All ranks have arrived/, /Rank 1 came to it, but does not answer any more/];
      const error = expectFailure(`survivor ${index}`, ending, { code: 'LOCKSTEP_TIMEOUT', says });
      expect(error.ranks).toEqual([victim]);
    });
    (ranks[victim] as NcclRank).kill('SIGCONT');
    expect((await ends[victim])?.ok).toBe(false);
    await closeAll(ranks);
  }, 60_000);
});
