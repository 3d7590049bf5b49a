/** A rank that waits in the store of a mock world: seen by the finder of deadlocks, by deadlines, faults and schedules. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { LockstepError, WorldError } from '../../../src/core/errors';
import type { World } from '../../../src/process-group/world';
import { runWorld, type MockBackend, type RunWorldOptions } from '../../../src/testing/index';
import { textOf } from './store-suite';
import { rejectionOf } from './worlds';

type Program = (world: World, backend: MockBackend) => unknown;

/** What each rank failed with; undefined where it returned. A deadline that is reached shows in the error's name. */
async function failuresOf(
  size: number,
  program: Program,
  options?: RunWorldOptions,
): Promise<(LockstepError | undefined)[]> {
  const error = (await rejectionOf(runWorld(size, program, { timeoutMs: 10_000, ...options }))) as WorldError;
  return Array.from({ length: size }, (_unused, rank) => error.errors[rank] as LockstepError | undefined);
}

const HERE = /tests\/unit\/process-group\/store-mock\.test\.ts:\d+:\d+/.source;
const names = (errors: readonly (Error | undefined)[]): (string | undefined)[] => errors.map((error) => error?.name);

describe('a key that nobody will set any more', () => {
  test('is named, with who waits for it where, once all others have returned', async () => {
    const errors = await failuresOf(3, async ({ rank, store }) => {
      if (rank === 1) await store.prefix('files').get('ready');
    });
    expect(names(errors)).toEqual([undefined, 'DeadlockError', undefined]);
    expect(errors[1]?.context).toMatchObject({ rank: 1, op: 'store.get', ranks: [1] });
    const lines = errors[1]?.message.split('\n') ?? [];
    expect(lines[0]).toBe('deadlock: ranks 0, 2 returned early, and rank 1 waits in vain:');
    expect(lines[1]).toMatch(
      new RegExp(`^ {2}rank 1 waits in store.get\\("files/ready"\\), at ${HERE}, for a value that nobody will set$`),
    );
    expect(lines[2]).toMatch(/^ {2}rank 0 has returned and will make no more calls/);
    expect(lines.at(-1)).toMatch(/look for a misspelt key or prefix/);
  });

  test('is found where the others wait in a collective, which ends too', async () => {
    const errors = await failuresOf(3, (world) => (world.rank === 1 ? world.store.wait(['a', 'b']) : world.barrier()));
    expect(names(errors)).toEqual(['DeadlockError', 'DeadlockError', 'DeadlockError']);
    expect(errors[1]?.context).toMatchObject({ rank: 1, op: 'store.wait', ranks: [0, 1, 2] });
    expect(errors[0]?.message).toMatch(
      /^deadlock: ranks 0, 1, 2 wait for each other:\n {2}rank 0 waits in barrier\(\)/,
    );
    expect(errors[0]?.message).toMatch(/\n {2}rank 1 waits in store.wait\("a", "b"\), at /);
  });

  test('is found where each rank waits for the key that the other would set next', async () => {
    const errors = await failuresOf(2, async ({ rank, store }) => {
      await store.get(`${1 - rank}`);
      await store.set(`${rank}`, '');
    });
    expect(names(errors)).toEqual(['DeadlockError', 'DeadlockError']);
  });

  test.each([0, 1, 2])('is found under the random schedule with seed %i, and alone in a world of one', async (seed) => {
    const [error] = await failuresOf(1, ({ store }) => store.get('k'), { schedule: 'random', seed });
    expect(error).toMatchObject({ name: 'DeadlockError' });
    expect(error?.message).toMatch(/^deadlock: rank 0 waits in vain:/);
  });

  test('is no end of the store: who handles it goes on', async () => {
    const values = await runWorld(2, async ({ rank, store }) => {
      if (rank === 1) return undefined;
      expect(await rejectionOf(store.get('k'))).toMatchObject({ name: 'DeadlockError' });
      await store.set('k', 'own');
      return textOf(await store.get('k'));
    });
    expect(values).toEqual(['own', undefined]);
  });

  test('is awaited no longer once its rank is lost, whose error is told', async () => {
    const errors = await failuresOf(3, async ({ rank, store }) => {
      if (rank === 1) throw new RangeError('no data');
      await store.get('data');
    });
    expect(names(errors)).toEqual(['PeerLostError', 'RangeError', 'PeerLostError']);
    expect(errors[2]).toMatchObject({ context: { ranks: [1] }, cause: { message: 'no data' } });
  });

  test('the store goes with rank 0 if that is lost, as on processes', async () => {
    const errors = await failuresOf(2, async ({ rank, store }) => {
      if (rank === 0) throw new RangeError('no data');
      await rejectionOf(store.get('k'));
      await store.set('k', '');
    });
    expect(errors[1]).toMatchObject({ name: 'PeerLostError', context: { ranks: [0] } });
    expect(errors[1]?.message).toMatch(
      /store.set on rank 1: rank 0, which serves the store, was lost: it threw RangeError/,
    );
  });
});

describe('no deadlock is', () => {
  test('a rank that waits while another computes, sleeps, or waits for others in turn', async () => {
    const values = await runWorld(3, async (world) => {
      const { rank, store } = world;
      if (rank === 2) {
        await sleepMs(120); // past the second look
        await store.set('1', 'a');
      } else if (rank === 1) {
        await store.set('0', `${textOf(await store.get('1'))}b`);
      } else {
        await store.wait(['0', '1']);
      }
      await world.barrier();
      return textOf(await store.get('0'));
    });
    expect(values).toEqual(['ab', 'ab', 'ab']);
  });

  test('a rank whose own other branch sets the key', async () => {
    const values = await runWorld(2, async (world) => {
      const value = world.store.get(`${world.rank}`);
      await world.barrier();
      await world.store.set(`${world.rank}`, 'own');
      return textOf(await value);
    });
    expect(values).toEqual(['own', 'own']);
  });

  test('a sleep of an hour on the virtual clock, which takes no time', async () => {
    const values = await runWorld(
      2,
      async ({ rank, store }, backend) => {
        if (rank === 1) {
          await backend.sleep(3_600_000);
          await store.set('k', 'v');
        }
        return textOf(await store.get('k', { timeoutMs: 4_000_000 }));
      },
      { clock: 'virtual' },
    );
    expect(values).toEqual(['v', 'v']);
  });
});

test('a rank that hangs leaves the others to their deadline, at once on the virtual clock', async () => {
  const faults = [{ kind: 'hang', rank: 1, call: 0 }] as const;
  const program: Program = async (world) => {
    if (world.rank === 1) await world.barrier();
    await (world.rank === 1 ? world.store.set('k', '') : world.store.get('k', { timeoutMs: 3_000_000 }));
  };
  const start = performance.now();
  const errors = await failuresOf(3, program, { clock: 'virtual', faults, timeoutMs: 100_000_000 });
  expect(errors[0]).toMatchObject({ name: 'CollectiveTimeoutError', context: { rank: 0 } });
  expect(errors[2]?.message).toMatch(/^store.get on rank 2: no value for "k" within 3000000 ms/);
  expect(performance.now() - start).toBeLessThan(4000);
});

test('the same seed is the same run, and orders that the calls leave open differ between seeds', async () => {
  const program = async ({ rank, store }: World): Promise<string> => {
    const place = await store.add('n', 1);
    await store.set(`${place}`, `${rank}`);
    await store.wait(['1', '2', '3']);
    return (await Promise.all(['1', '2', '3'].map((key) => store.get(key)))).map(textOf).join('');
  };
  const orders: string[] = [];
  for (let seed = 0; seed < 40; seed++) {
    const [first, ...others] = await runWorld(3, program, { schedule: 'random', seed });
    expect(others).toEqual([first, first]);
    expect(await runWorld(3, program, { schedule: 'random', seed })).toContain(first);
    orders.push(first as string);
  }
  expect(new Set(orders).size).toBeGreaterThan(1);
});

test('a rank that returns while it waits in the store is told where', async () => {
  const errors = await failuresOf(2, async ({ rank, store }) => {
    if (rank === 0) void store.get('k').catch(() => undefined);
    else await sleepMs(5);
  });
  expect(errors[0]).toMatchObject({ name: 'InvalidArgumentError' });
  expect(errors[0]?.message).toMatch(
    new RegExp(`rank 0 returned while its store.get\\("k"\\), at ${HERE} still waits`),
  );
});

test('a report of where ranks stand names the wait', async () => {
  const error = await rejectionOf(
    runWorld(2, ({ rank, store }) => (rank === 0 ? store.get('k') : new Promise<never>(() => undefined)), {
      stallMs: 150,
    }),
  );
  expect(error.message).toMatch(/rank 0 waits in store.get\("k"\), at /);
});
