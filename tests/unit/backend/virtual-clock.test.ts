import { readFile } from 'node:fs/promises';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failureOf, floats, names, failures, results } from './mock-worlds';

const HOUR_MS = 3_600_000;
const virtual = { clock: 'virtual' } as const;

test('sleeps take no time, and end in the order of their due times', async () => {
  const log: string[] = [];
  const before = performance.now();
  const ends = await results(
    3,
    async (backend) => {
      for (let round = 0; round < 3; round++) {
        await backend.sleep((3 - backend.rank) * HOUR_MS);
        log.push(`${backend.rank}@${backend.clock.now() / HOUR_MS}h`);
      }
      await backend.barrier();
      return backend.clock.now() / HOUR_MS;
    },
    { ...virtual, timeoutMs: 100 * HOUR_MS },
  );
  expect(log).toEqual(['2@1h', '1@2h', '2@2h', '0@3h', '2@3h', '1@4h', '0@6h', '1@6h', '0@9h']);
  expect(ends).toEqual([9, 9, 9]);
  expect(performance.now() - before).toBeLessThan(5000);
});

test('time stands still while a rank can go on, also by I/O', async () => {
  const times = await results(
    2,
    async (backend) => {
      if (backend.rank === 0) {
        await backend.sleep(HOUR_MS);
        return backend.clock.now();
      }
      for (let turn = 0; turn < 5; turn++) {
        await readFile(__filename);
        await new Promise(setImmediate);
      }
      return backend.clock.now();
    },
    virtual,
  );
  expect(times).toEqual([HOUR_MS, 0]);
});

test('a deadline passes at once, and names the rank that did not arrive', async () => {
  const [first] = MockBackend.createWorld(3, { ...virtual, timeoutMs: HOUR_MS }) as [MockBackend];
  const error = await failureOf(first.allReduce(floats(1), 'Sum'));
  expect(error.name).toBe('CollectiveTimeoutError');
  expect(error.message).toMatch(/not finished within 3600000 ms\. Ranks 1, 2 did not arrive/);
  expect(first.clock.now()).toBe(HOUR_MS);
});

test('whichever is due first comes first: the sleep of a late rank, or the deadline of those who wait', async () => {
  const late = (sleepMs: number) =>
    failures(
      2,
      async (backend) => {
        if (backend.rank === 1) await backend.sleep(sleepMs);
        await backend.barrier();
      },
      { ...virtual, timeoutMs: 1000 },
    );
  expect(names(await late(999))).toEqual([undefined, undefined]);
  expect(names(await late(1001))).toEqual(['CollectiveTimeoutError', 'ClosedError']);
});

test('a wait with a limit of its own runs on it', async () => {
  const [first, second] = MockBackend.createWorld(2, { ...virtual, timeoutMs: 10 * HOUR_MS }) as [
    MockBackend,
    MockBackend,
  ];
  const work = first.barrier();
  expect((await failureOf(work.wait({ timeoutMs: HOUR_MS }))).message).toMatch(/still in flight/);
  expect(first.clock.now()).toBe(HOUR_MS);
  await Promise.all([work, second.barrier()]);
});

test('a deadlock is found before time moves', async () => {
  const [error] = await failures(
    2,
    async (backend) => {
      await backend.recv(floats(1), 1 - backend.rank).catch((cause: unknown) => {
        throw new Error(`at ${backend.clock.now()}`, { cause });
      });
    },
    virtual,
  );
  expect(error?.message).toBe('at 0');
  expect((error?.cause as Error).name).toBe('DeadlockError');
});

test('a rank that sleeps is not stuck', async () => {
  expect(
    await failures(
      2,
      async (backend) => {
        await Promise.all([backend.barrier(), backend.rank === 0 ? undefined : backend.sleep(HOUR_MS)]);
        if (backend.rank === 1) await backend.send(floats(1), 0);
        else await backend.recv(floats(1), 1);
      },
      { ...virtual, timeoutMs: 2 * HOUR_MS },
    ),
  ).toEqual([undefined, undefined]);
});

test('a sleep on the real clock takes its time', async () => {
  const [elapsedMs] = await results(1, async (backend) => {
    const start = backend.clock.now();
    await backend.sleep(20);
    return backend.clock.now() - start;
  });
  expect(elapsedMs).toBeGreaterThan(10); // Node counts from the start of the turn
});

test('time does not move for calls that nobody awaits', async () => {
  const [first, second] = MockBackend.createWorld(2, { ...virtual, timeoutMs: 1000 }) as [MockBackend, MockBackend];
  const work = first.barrier();
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  expect(first.clock.now()).toBe(0);
  await second.barrier();
  expect(work.isCompleted).toBe(true);
  const late = first.barrier({ timeoutMs: 10 });
  await second.sleep(20);
  expect(late.isCompleted).toBe(true); // its deadline passed meanwhile
  expect((await failureOf(late)).name).toBe('CollectiveTimeoutError');
});
