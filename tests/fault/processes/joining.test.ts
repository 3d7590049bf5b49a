/** Processes that do not belong to the job, and ranks that never come: who joins is told what is wrong. */
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { JobPlace } from '../../helpers/process-world';
import { isFree } from '../../helpers/free-port';
import { AT_ONCE_MS, closeAll, Jobs, type Rank } from './job';
import type { Joined } from './tasks';

const jobs = new Jobs();
afterAll(() => jobs.close());

type Place = Omit<JobPlace, 'rank'>;

/** Each process joins as its place says; how it went, by process. */
function joinAll(ranks: readonly Rank[], places: readonly JobPlace[]): Promise<Joined[]> {
  return Promise.all(ranks.map((rank, index) => rank.call('join', places[index] as JobPlace)));
}

async function leave(ranks: readonly Rank[]): Promise<void> {
  await closeAll(ranks.filter((rank) => rank.isUsable));
}

/** A world of two, which runs, and an intruder that joins as `intruder` says; its error. */
async function refused(intruder: (place: Place) => JobPlace, own?: Rank): Promise<Joined> {
  const place = { ...(await jobs.place(2)), timeoutMs: 3000 };
  const [first, second, third] = (await jobs.take(3)) as [Rank, Rank, Rank];
  const members = [first, second];
  const late = own ?? third;
  await Promise.all(members.map((rank, index) => rank.call('open', { ...place, rank: index })));
  const joined = await late.call('join', intruder(place));
  // the job goes on undisturbed
  const ends = await Promise.all(members.map((rank) => rank.call('loop', { elements: 1000, rounds: 3 })));
  expect(ends.map(({ error }) => error)).toEqual([null, null]);
  await leave(members);
  return joined;
}

test('a rank that never comes is named at the deadline, to all that came', async () => {
  const place = { ...(await jobs.place(3)), timeoutMs: 1500 };
  const ranks = await jobs.take(2);
  const joined = await joinAll(ranks, [
    { ...place, rank: 0 },
    { ...place, rank: 2 },
  ]);
  for (const { error, elapsedMs } of joined) {
    expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', ranks: [1] });
    expect(error?.message).toMatch(/rank 1\b/i);
    expect(elapsedMs).toBeLessThan(1500 + AT_ONCE_MS);
  }
  await leave(ranks);
});

test('without rank 0, the others say where they looked for it', async () => {
  const place = { ...(await jobs.place(2)), timeoutMs: 1500 };
  const [rank] = (await jobs.take(1)) as [Rank];
  const { error, elapsedMs } = await rank.call('join', { ...place, rank: 1 });
  expect(['LOCKSTEP_TIMEOUT', 'LOCKSTEP_UNAVAILABLE']).toContain(error?.code);
  expect(error?.message).toMatch(new RegExp(`127\\.0\\.0\\.1:${place.masterPort}`));
  expect(error?.message).toMatch(/rank 0\b/i);
  expect(elapsedMs).toBeLessThan(1500 + AT_ONCE_MS);
});

test('of two processes with the same rank the second is refused, and the job goes on', async () => {
  const { error, elapsedMs } = await refused((place) => ({ ...place, rank: 1 }));
  expect(error?.code).toBe('LOCKSTEP_INVALID_ARGUMENT');
  expect(error?.message).toMatch(/rank 1\b/);
  expect(elapsedMs).toBeLessThan(AT_ONCE_MS);
});

test('a process that counts another world size is refused, with both sizes', async () => {
  const { error, elapsedMs } = await refused((place) => ({ ...place, worldSize: 3, rank: 2 }));
  expect(error?.code).toBe('LOCKSTEP_INVALID_ARGUMENT');
  expect(error?.message).toMatch(/\b3\b/);
  expect(error?.message).toMatch(/\b2\b/);
  expect(error?.message).toMatch(/world ?size|WORLD_SIZE/i);
  expect(elapsedMs).toBeLessThan(AT_ONCE_MS);
});

test('a process of the previous generation is refused', async () => {
  const { error, elapsedMs } = await refused((place) => ({ ...place, generation: 1, rank: 1 }));
  expect(error?.code).toBe('LOCKSTEP_INVALID_ARGUMENT');
  expect(error?.message).toMatch(/generation/);
  expect(elapsedMs).toBeLessThan(AT_ONCE_MS);
});

test('a process with another token is refused, and neither token is shown', async () => {
  const { error, elapsedMs } = await refused((place) => ({ ...place, token: 'a guess at the token', rank: 1 }));
  expect(error?.code).toBe('LOCKSTEP_INVALID_ARGUMENT');
  expect(error?.message).toMatch(/token/);
  expect(JSON.stringify(error)).not.toMatch(/a guess at the token|the token of this job/);
  expect(elapsedMs).toBeLessThan(AT_ONCE_MS);
});

test('a process of another version of the protocol is refused, with both versions', async () => {
  const own = jobs.own({ preload: [join(__dirname, 'other-version.ts')] });
  const { error, elapsedMs } = await refused((place) => ({ ...place, rank: 1 }), own);
  expect(error?.code).toBe('LOCKSTEP_INVALID_ARGUMENT');
  expect(error?.message).toMatch(/version/);
  expect(error?.message).toMatch(/\b99\b/);
  expect(elapsedMs).toBeLessThan(AT_ONCE_MS);
});

test('a port that somebody else listens on is named by rank 0', async () => {
  const place = await jobs.place(2);
  const other = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve) => other.listen(place.masterPort, '127.0.0.1', resolve));
  try {
    const [rank] = (await jobs.take(1)) as [Rank];
    const { error } = await rank.call('join', { ...place, timeoutMs: 2000, rank: 0 });
    expect(error?.code).toBe('LOCKSTEP_UNAVAILABLE');
    expect(error?.message).toMatch(new RegExp(`${place.masterPort}`));
  } finally {
    other.close();
  }
});

test.each(['localhost', '127.0.0.1', '::1'])('a job meets at %s', async (masterAddr) => {
  if (masterAddr === '::1' && !(await isFree((await jobs.place(1)).masterPort, '::1'))) {
    process.stdout.write('[skip] this machine has no IPv6 loopback\n');
    return;
  }
  const place = { ...(await jobs.place(3)), masterAddr };
  const ranks = await jobs.take(3);
  const joined = await joinAll(
    ranks,
    ranks.map((_unused, rank) => ({ ...place, rank })),
  );
  expect(joined.map(({ error }) => error)).toEqual([null, null, null]);
  const ends = await Promise.all(ranks.map((rank) => rank.call('loop', { elements: 10, rounds: 1 })));
  expect(ends.map(({ error }) => error)).toEqual([null, null, null]);
  await leave(ranks);
});
