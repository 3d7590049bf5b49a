/** The process that hosts the store is lost: while ranks join, and while they work. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { Ending } from '../../conformance/program';
import type { WireError } from '../../../src/core/error-wire';
import { isListening } from '../../helpers/free-port';
import { AT_ONCE_MS, closeAll, expectNamed, Jobs, PLANES, type Plane, type Rank } from './job';
import { Generator } from '../../../src/core/generator';
import { count } from '../../helpers/counts';

const folder = mkdtempSync(join(tmpdir(), 'lockstep-store-'));
const jobs = new Jobs({ env: { TMPDIR: folder } });
afterAll(async () => {
  await jobs.close();
  rmSync(folder, { recursive: true, force: true });
});

/** What a call failed with; undefined: it succeeded. */
const errorOf = (end: Ending): WireError | undefined => (end.ok ? undefined : end.error);

const KILLS = count('fault: kill -9 of a rank while the world forms', 2, 100);
const TIMEOUT_MS = 2500;

test('when the store dies before all ranks have come, those that wait are told at once that rank 0 is gone', async () => {
  const place = { ...(await jobs.place(3)), timeoutMs: 60_000 };
  const [host, waiting] = (await jobs.take(2)) as [Rank, Rank];
  await waiting.call('open', { ...(await jobs.place(1)), rank: 0 }); // loads what else would load while the host dies
  await closeAll([waiting]);
  host.call('join', { ...place, rank: 0 }).catch(() => undefined);
  while (!(await isListening(place.masterPort))) await sleepMs(10);
  const joining = waiting.call('join', { ...place, rank: 1 }, 60_000);
  // Its session with the store has begun; who loses the store before that looks for it until the deadline.
  while (!(await waiting.call('resources', undefined)).includes('TCPSocketWrap')) await sleepMs(20);
  await sleepMs(1000);
  host.kill('SIGKILL');
  await host.ended;
  const start = performance.now();
  const { error } = await joining;
  expect(performance.now() - start).toBeLessThan(AT_ONCE_MS);
  expect(['LOCKSTEP_PEER_LOST', 'LOCKSTEP_UNAVAILABLE']).toContain(error?.code);
  expect(error?.message).toMatch(/rank 0\b/i);
}, 60_000);

test('answers to many calls at once leave no warning of node in the log', async () => {
  const [rank] = (await jobs.start(1, {})) as [Rank];
  expect(await rank.call('getTogether', { gets: 200, bytes: 10_000 })).toBe(2_000_000);
  expect(rank.output).not.toMatch(/Warning/);
  await closeAll([rank]);
});

test.each(PLANES)(
  'when the rank that hosts the store dies at work over %s, it is the rank that is named',
  async (dataPlane) => {
    const ranks = await jobs.start(3, { dataPlane });
    const survivors = ranks.slice(1);
    const ends = survivors.map((rank) => rank.call('loop', { elements: 1000, rounds: 1_000_000 }));
    const host = ranks[0] as Rank;
    host.call('loop', { elements: 1000, rounds: 1_000_000 }).catch(() => undefined);
    await sleepMs(60);
    host.kill('SIGKILL');
    for (const end of await Promise.all(ends)) expectNamed('survivor', end.error, [0], { code: 'LOCKSTEP_PEER_LOST' });
    await closeAll(survivors);
  },
);

test('who waits for a key is told at once that a rank is lost, and then that the store is', async () => {
  const ranks = (await jobs.start(3, {})) as [Rank, Rank, Rank];
  const [host, waiting, victim] = ranks;
  const waits = [host, waiting].map((rank) => rank.call('awaitKey', { key: 'never' }));
  await waiting.call('setKey', { key: 'there' }); // the wait of the same rank has come to the store before it
  victim.kill('SIGKILL');
  for (const end of await Promise.all(waits)) expectNamed('wait', errorOf(end), [2], { code: 'LOCKSTEP_PEER_LOST' });
  expect(await waiting.call('awaitKey', { key: 'there' })).toMatchObject({ ok: true });
  const later = await waiting.call('awaitKey', { key: 'never' });
  expect(later).toMatchObject({ ok: false, error: { code: 'LOCKSTEP_CLOSED' } });
  host.kill('SIGKILL');
  await host.ended;
  for (const end of [await waiting.call('setKey', { key: 'k' }), await waiting.call('awaitKey', { key: 'there' })]) {
    expectNamed('store', errorOf(end), [0], { code: 'LOCKSTEP_PEER_LOST', says: [/store at 127\.0\.0\.1:\d+/] });
  }
  await closeAll([waiting]);
  expect(await waiting.call('resources', undefined)).toEqual([]);
});

describe.each(Array.from({ length: KILLS }, (_unused, seed) => seed))(
  'kill -9 while the world forms, seed %i',
  (seed) => {
    const random = new Generator(1000 + seed);
    const size = 2 + random.nextBelow(3);
    const victim = random.nextBelow(size);
    const delayMs = random.nextBelow(150);
    const namesVictim = new RegExp(`ranks? .*\\b${victim}\\b`, 'i');
    const dataPlane = PLANES[seed % 2] as Plane;
    test(`rank ${victim} of ${size} after ${delayMs} ms over ${dataPlane}`, async () => {
      const place = { ...(await jobs.place(size)), timeoutMs: TIMEOUT_MS, dataPlane };
      const ranks = await jobs.take(size);
      const joins = ranks.map((rank, index) => rank.call('join', { ...place, rank: index }).catch(() => undefined));
      await sleepMs(delayMs);
      ranks[victim]?.kill('SIGKILL');
      await ranks[victim]?.ended;
      for (const [index, rank] of ranks.entries()) {
        if (index === victim) continue;
        const joined = await joins[index];
        expect(joined).toBeDefined();
        // either the world could not form, or it formed before and the first call learns
        const error = joined?.error ?? (await rank.call('loop', { elements: 100, rounds: 1_000_000 })).error;
        expect(error?.code).toMatch(/LOCKSTEP_(PEER_LOST|TIMEOUT|UNAVAILABLE)/);
        expect(error?.message).toMatch(namesVictim);
        // A rank that gives up takes its connections with it; nobody must take it for the culprit.
        if (error?.code !== 'LOCKSTEP_TIMEOUT') expect(error?.ranks).toEqual([victim]);
      }
      await closeAll(ranks.filter((_unused, index) => index !== victim));
    }, 60_000);
  },
);
