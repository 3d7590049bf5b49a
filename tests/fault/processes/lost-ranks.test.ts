/** A process that is gone: the others learn at once, by name, and groups without it go on. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import { Generator } from '../../../src/core/generator';
import { expectEqual, expectError, expectFailure, expectSuccess } from '../../conformance/expectations';
import type { TlsOptions } from '../../../src/backend/grpc/endpoint';
import { CertificateAuthority } from '../../helpers/certificates';
import { count } from '../../helpers/counts';
import { AT_ONCE_MS, closeAll, expectNamed, Jobs, PLANES, type Plane, type Rank } from './job';
import type { LoopEnd } from './loop';

const jobs = new Jobs();
afterAll(() => jobs.close());

const FOREVER = 1_000_000;
const KILLS = count('fault: kill -9 of a rank at a random moment', 10, 200);

interface Loss {
  readonly plane: Plane;
  readonly size: number;
  readonly victim: number;
  readonly elements: number;
  readonly tls?: TlsOptions | undefined;
}

/** Start collectives on all ranks, let `lose` end the victim in the middle, and check what the others have to say. */
async function checkLoss(loss: Loss, lose: (victim: Rank) => Promise<void>, says: RegExp[] = []): Promise<LoopEnd[]> {
  const { plane, size, victim, elements, tls } = loss;
  const ranks = await jobs.start(size, { dataPlane: plane, tls });
  await Promise.all(ranks.map((rank) => rank.call('splitOff', { victim })));
  const survivors = ranks.filter((_unused, rank) => rank !== victim);
  const ends = survivors.map((rank) => rank.call('loop', { elements, rounds: FOREVER }));
  const lost = (ranks[victim] as Rank).call('loop', { elements, rounds: FOREVER }).catch(() => undefined);
  await lose(ranks[victim] as Rank);
  const lostAtMs = Date.now();
  const results = await Promise.all(ends);
  await lost;
  results.forEach((end, index) => {
    const where = `rank ${index < victim ? index : index + 1} of ${size} (${plane})`;
    expectNamed(where, end.error, [victim], { code: 'LOCKSTEP_PEER_LOST', says });
    expectFailure(`${where}, later`, end.later, { code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_PEER_LOST' } });
    expectSuccess(`${where}, in the group without it`, end.others);
    if (end.endedAtMs - lostAtMs > AT_ONCE_MS) throw new Error(`${where}: learnt after ${end.endedAtMs - lostAtMs} ms`);
  });
  await closeAll(survivors);
  return results;
}

describe.each(Array.from({ length: KILLS }, (_unused, seed) => seed))('kill -9, seed %i', (seed) => {
  const random = new Generator(seed);
  const size = 2 + random.nextBelow(3);
  const victim = random.nextBelow(size);
  const elements = [10, 1000, 300_000][random.nextBelow(3)] as number;
  const delayMs = random.nextBelow(120);
  const plane = PLANES[seed % 2] as Plane;
  test(`rank ${victim} of ${size} after ${delayMs} ms, ${elements} elements over ${plane}`, async () => {
    await checkLoss({ plane, size, victim, elements }, async (rank) => {
      await sleepMs(delayMs);
      rank.kill('SIGKILL');
      await rank.ended;
    });
  }, 60_000);
});

const THREW = /rank 1 of group world\S* was lost: it threw RangeError: no data$/;

test.each([
  ['right after it has posted much, is lost with what it threw', 8, undefined, [THREW]],
  // A TLS socket writes once a turn, so another frame of the same turn is in the way: [Note: last words]
  ['over TLS is lost', 0, new CertificateAuthority('the authority of this test').issue('a rank'), []],
])('a rank that throws %s, on sockets', async (_what, posts, tls, says) => {
  const loss = { plane: 'socket', size: 3, victim: 1, elements: 1000, tls } as const;
  const throwUncaught = async (rank: Rank): Promise<void> => {
    await sleepMs(30);
    rank.call('throwUncaught', { message: 'no data', posts }).catch(() => undefined);
    expectEqual('exit code', (await rank.ended).code, 1);
  };
  await checkLoss(loss, throwUncaught, says);
});

describe.each(PLANES)('over %s', (plane) => {
  test('a rank that throws and catches nothing ends as usual, and is named to the others', async () => {
    // HTTP/2 writes too late: [Note: last words]
    const says = plane === 'socket' ? [THREW] : [];
    const throwUncaught = async (rank: Rank): Promise<void> => {
      await sleepMs(30);
      rank.call('throwUncaught', { message: 'no data' }).catch(() => undefined);
      expectEqual('exit code', (await rank.ended).code, 1);
      expect(rank.output).toMatch(/throw new RangeError[^]*RangeError: no data\n {4}at /);
    };
    await checkLoss({ plane, size: 3, victim: 1, elements: 1000 }, throwUncaught, says);
  });

  test('a rank that aborts its world because of an error and closes it tells the others its message', async () => {
    const ranks = await jobs.start(3, { dataPlane: plane });
    const survivors = ranks.slice(1);
    const ends = survivors.map((rank) => rank.call('loop', { elements: 1000, rounds: FOREVER }));
    await sleepMs(30);
    await (ranks[0] as Rank).call('abort', { message: 'no data' });
    for (const end of await Promise.all(ends)) {
      expect(end.error).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { name: 'RangeError', message: 'no data' } });
      expect(end.error?.message).toMatch(/aborted by rank 0: no data/);
    }
    await closeAll(survivors);
  });

  test('a rank that exits early, well or not, is named to the others', async () => {
    for (const code of [0, 3]) {
      await checkLoss({ plane, size: 3, victim: 2, elements: 1000 }, async (rank) => {
        rank.call('exit', { code }).catch(() => undefined);
        expectEqual('exit code', (await rank.ended).code, code);
      });
    }
  });

  test('connections that break in the middle of a frame are a lost rank, on both of their ends', async () => {
    const [size, victim, elements] = [3, 2, 16 * 2 ** 20];
    const ranks = await jobs.start(size, { dataPlane: plane });
    const ends = ranks.map((rank) => rank.call('loop', { elements, rounds: FOREVER }));
    const cut = await (ranks[victim] as Rank).call('cutConnections', { afterMs: 400 });
    expect(cut).toBeGreaterThanOrEqual(2);
    const results = await Promise.all(ends);
    results.forEach(({ error }, rank) => {
      const where = `rank ${rank} (${plane})`;
      if (error === null) throw new Error(`${where}: nothing failed`);
      expectError(where, error, { code: 'LOCKSTEP_PEER_LOST' });
      expectEqual(`${where}: names the other end`, (error.ranks ?? []).includes(victim), rank !== victim);
    });
    await closeAll(ranks);
  });

  test('a rank that is lost while nobody calls anything is named in the next call', async () => {
    const ranks = await jobs.start(3, { dataPlane: plane });
    (ranks[0] as Rank).kill('SIGKILL');
    await (ranks[0] as Rank).ended;
    await sleepMs(50);
    const survivors = ranks.slice(1);
    const ends = await Promise.all(survivors.map((rank) => rank.call('next', undefined)));
    ends.forEach((end, index) => {
      const error = expectFailure(`rank ${index + 1}`, end, {
        code: ['LOCKSTEP_PEER_LOST', 'LOCKSTEP_CLOSED'],
        says: [/rank 0\b/],
      });
      expect(error.message).toMatch(/rank 0\b/);
    });
    await closeAll(survivors);
  });
});
