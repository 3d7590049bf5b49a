/** A job leaves nothing behind: no process, no port, no file, no handle. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleepMs } from 'node:timers/promises';
import { count } from '../../helpers/counts';
import { isFree } from '../../helpers/free-port';
import { closeAll, Jobs, PLANES, type Plane, type Rank } from './job';

const jobs = new Jobs();
const folder = mkdtempSync(join(tmpdir(), 'lockstep-start-stop-'));
afterAll(async () => {
  await jobs.close();
  rmSync(folder, { recursive: true, force: true });
});

const STARTS = count('fault: starts and stops of whole jobs in a row', 3, 50);

/** What jobs have left in the temporary folder; the compiler of the tests keeps its own there. */
const leftFiles = (): string[] => readdirSync(folder).filter((name) => !name.startsWith('tsx-'));

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test(`${STARTS} jobs in a row on one port leave no process, port or file; each process ends by itself`, async () => {
  const place = await jobs.place(2);
  for (let round = 0; round < STARTS; round++) {
    const ranks: Rank[] = [0, 1].map(() => jobs.own({ env: { TMPDIR: folder } }));
    const dataPlane = PLANES[round % 2] as Plane;
    await Promise.all(ranks.map((rank, index) => rank.call('open', { ...place, dataPlane, rank: index })));
    const ends = await Promise.all(ranks.map((rank) => rank.call('loop', { elements: 10, rounds: 2 })));
    expect(ends.map(({ error }) => error)).toEqual([null, null]);
    await closeAll(ranks);
    const ended = await Promise.all(ranks.map((rank) => rank.leave()));
    expect(ended).toEqual(ranks.map(() => ({ code: 0, signal: null })));
    expect(ranks.filter(({ pid }) => isAlive(pid))).toEqual([]);
    expect(await isFree(place.masterPort)).toBe(true);
    expect(leftFiles()).toEqual([]);
  }
}, 300_000);

test.each(PLANES)(
  'after close over %s nothing of the world keeps a process alive, and its port is free at once',
  async (dataPlane) => {
    const place = await jobs.place(3);
    const ranks = await jobs.take(3);
    for (let round = 0; round < 3; round++) {
      await Promise.all(ranks.map((rank, index) => rank.call('open', { ...place, dataPlane, rank: index })));
      await closeAll(ranks);
      const resources = await Promise.all(ranks.map((rank) => rank.call('resources', undefined)));
      expect(resources).toEqual([[], [], []]);
    }
  },
);

test('what a rank that was killed while it connected has left is removed by the next start', async () => {
  const place = await jobs.place(2);
  const killed = jobs.own({ env: { TMPDIR: folder } });
  killed.call('join', { ...place, dataPlane: 'socket', rank: 0 }).catch(() => undefined); // rank 1 never comes
  while (leftFiles().length === 0) await sleepMs(10);
  killed.kill('SIGKILL');
  await killed.ended;
  expect(leftFiles()).toHaveLength(1);
  const ranks: Rank[] = [0, 1].map(() => jobs.own({ env: { TMPDIR: folder } }));
  await Promise.all(ranks.map((rank, index) => rank.call('open', { ...place, dataPlane: 'socket', rank: index })));
  await closeAll(ranks);
  expect(leftFiles()).toEqual([]);
});

test('a process that is killed leaves no file that its job’s next start stumbles over', async () => {
  const place = await jobs.place(2);
  for (let round = 0; round < 2; round++) {
    const ranks: Rank[] = [0, 1].map(() => jobs.own({ env: { TMPDIR: folder } }));
    await Promise.all(ranks.map((rank, index) => rank.call('open', { ...place, dataPlane: 'socket', rank: index })));
    for (const rank of ranks) await rank.end();
  }
});
