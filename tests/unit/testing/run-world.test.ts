import { isLockstepError, type WorldError } from '../../../src/core/errors';
import { runWorld, type MockBackend, type RunWorldOptions } from '../../../src/testing/index';
import { memoryAccountKey, memory } from '../../../src/core/memory-account';
import { defaultGenerator, manualSeed } from '../../../src/core/random';
import type { World } from '../../../src/process-group/world';

async function worldErrorOf(
  size: number,
  program: (world: World) => unknown,
  options?: RunWorldOptions,
): Promise<WorldError> {
  try {
    await runWorld(size, program, options);
  } catch (error) {
    if (isLockstepError(error, 'LOCKSTEP_WORLD')) return error as WorldError;
    throw error;
  }
  throw new Error('expected a WorldError');
}

const forever = (): Promise<never> => new Promise(() => undefined);

describe.each([1, 2, 3, 4, 7])('a world of %i', (size) => {
  test('runs one function per rank, and returns the results by rank', async () => {
    const results = await runWorld(size, async (world) => {
      await world.barrier();
      return [world.rank, world.worldSize, world.isMain];
    });
    expect(results).toEqual(Array.from({ length: size }, (_unused, rank) => [rank, size, rank === 0]));
  });

  test('closes all its groups in the end', async () => {
    const worlds = await runWorld(size, (world) => world);
    for (const world of worlds) await expect(world.barrier()).rejects.toMatchObject({ code: 'LOCKSTEP_CLOSED' });
  });

  test('takes options of the mock', async () => {
    const names = await runWorld(size, (world) => (world.group.backend as MockBackend).clock.now(), {
      clock: 'virtual',
      schedule: 'random',
      seed: 5,
    });
    expect(names).toEqual(new Array(size).fill(0));
  });
});

describe('a WorldError', () => {
  test('opens with the whole message of the rank that failed first; the others take a line each', async () => {
    const boom = new TypeError('no such file\nas data.csv');
    const error = await worldErrorOf(4, async (world) => {
      if (world.rank === 2) throw boom;
      await world.barrier();
    });
    expect(error.message.split('\n')).toEqual([
      'no such file',
      'as data.csv',
      '',
      'Rank 2 of 4 failed first, with TypeError. Then:',
      '  rank 0: PeerLostError: rank 2 of group world was lost: it threw TypeError: no such file',
      '  rank 1: PeerLostError: rank 2 of group world was lost: it threw TypeError: no such file',
      '  rank 3: PeerLostError: rank 2 of group world was lost: it threw TypeError: no such file',
    ]);
    expect(error.cause).toBe(boom);
    expect(error.context.rank).toBe(2);
    expect(error.errors[2]).toBe(boom);
    expect(error.errors[0]).toMatchObject({ code: 'LOCKSTEP_PEER_LOST' });
  });

  test('has no entry for a rank that returned', async () => {
    const error = await worldErrorOf(3, (world) => {
      if (world.rank === 1) throw new Error('alone');
    });
    expect(Object.keys(error.errors)).toEqual(['1']);
    expect(error.errors).toHaveLength(3);
    expect(error.message).toBe('alone\n\nRank 1 of 3 failed first, with Error.');
  });

  test('names the origin, also where a consequence was noticed earlier or was wrapped', async () => {
    const error = await worldErrorOf(3, async (world) => {
      try {
        if (world.rank === 1) throw new Error('the origin');
        await world.barrier();
      } catch (cause) {
        if (world.rank !== 1) throw new Error(`step failed on rank ${world.rank}`, { cause });
        for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
        throw cause;
      }
    });
    expect((error.cause as Error).message).toBe('the origin');
  });

  test('says the same only once', async () => {
    const error = await worldErrorOf(3, async (world) => {
      if (world.rank > 0) await world.barrier();
    });
    expect(error.message).toMatch(/^deadlock: rank 0 returned early, and ranks 1, 2 wait in vain:\n/);
    expect(error.message).toMatch(
      /Rank 1 of 3 failed first, with DeadlockError\. Then:\n {2}rank 2: DeadlockError: the same$/,
    );
  });

  test('wraps what is no Error', async () => {
    const error = await worldErrorOf(1, () => {
      throw 'just text'; // eslint-disable-line @typescript-eslint/only-throw-error -- what careless code throws
    });
    expect(error.message).toMatch(/^a value that is not an Error was thrown: just text/);
  });
});

describe('a world in which nothing moves', () => {
  test('fails by itself and says where each rank stands', async () => {
    const error = await worldErrorOf(
      3,
      async (world) => {
        await world.barrier();
        if (world.rank === 0) await forever();
        if (world.rank === 1) await world.barrier();
        if (world.rank === 2) return;
      },
      { stallMs: 100, timeoutMs: 60_000, checks: 'order' },
    );
    const lines = error.message.split('\n');
    expect(lines[0]).toMatch(/deadlock: rank 2 returned early, and rank 1 waits in vain:/);
    expect(error.message).toMatch(
      /No rank made progress for 100 ms:\n {2}rank 0 is running; its last call was barrier\(\), collective 0 of group world, at tests\/unit\/testing\/run-world\.test\.ts:\d+:\d+, which is done/,
    );
    expect(error.message).toMatch(/\n {2}rank 1 is lost: deadlock/);
    expect(error.message).toMatch(/\n {2}rank 2 has returned and will make no more calls/);
  });

  test('is not one whose loop is blocked by a rank that computes', async () => {
    await runWorld(
      2,
      async (world) => {
        for (let step = 0; world.rank === 1 && step < 24; step++) {
          for (const endMs = performance.now() + 30; performance.now() < endMs;);
          await new Promise(setImmediate);
        }
        await world.barrier();
      },
      { stallMs: 200 },
    );
  });

  test('opens with the stall where no rank has failed', async () => {
    const error = await worldErrorOf(2, (world) => (world.rank === 0 ? world.barrier() : forever()), { stallMs: 80 });
    expect(error.message).toMatch(
      /^No rank made progress for 80 ms:\n {2}rank 0 waits in barrier\(\), collective 0 of group world, at .*, for rank 1\n {2}rank 1 is running; it made no call\n/,
    );
    expect(error.message).toMatch(/a timer that does not fire \(fake timers\?\)\. Pass a larger stallMs/);
    expect(error.cause).toBeUndefined();
    expect(Object.keys(error.errors)).toEqual([]);
  });

  test('is left alone while the event loop is blocked by a computation', async () => {
    await runWorld(
      2,
      async (world) => {
        await world.barrier();
        const until = performance.now() + 300;
        while (world.rank === 0 && performance.now() < until);
        await new Promise((resolve) => setTimeout(resolve, 20));
        await world.barrier();
      },
      { stallMs: 100 },
    );
  });

  test('is not what a world is whose ranks make progress, however long it takes', async () => {
    await runWorld(
      2,
      async (world) => {
        for (let step = 0; step < 10; step++) {
          await new Promise((resolve) => setTimeout(resolve, 20));
          await world.barrier();
        }
      },
      { stallMs: 100 },
    );
  });
});

test('bad options are refused, with those that are known', async () => {
  await expect(runWorld(2, () => undefined, { stallMS: 5 } as never)).rejects.toMatchObject({
    code: 'LOCKSTEP_INVALID_ARGUMENT',
    message: expect.stringMatching(/^runWorld: options: unknown key 'stallMS'\..*stallMs/),
  });
  await expect(runWorld(0, () => undefined)).rejects.toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT' });
});

test('ranks that run at the same time keep their ambient state apart', async () => {
  const draws = await runWorld(
    4,
    async (world) => {
      if (world.rank === 0) manualSeed(99);
      await world.barrier();
      const words: number[] = [];
      memoryAccountKey.get().add('other', 1 + world.rank);
      for (let i = 0; i < 3; i++) {
        words.push(defaultGenerator().nextUint32());
        await world.barrier();
      }
      return [words, memory.totals().live] as const;
    },
    { schedule: 'random', seed: 2 },
  );
  expect(new Set(draws.map(([words]) => words.join())).size).toBe(4);
  expect(draws.map(([, bytes]) => bytes)).toEqual([1, 2, 3, 4]);
});

test('two worlds run side by side without knowing of each other', async () => {
  const run = (rounds: number) =>
    runWorld(3, async (world) => {
      for (let round = 0; round < rounds; round++) {
        await world.barrier();
        await new Promise(setImmediate);
      }
      return rounds;
    });
  expect(await Promise.all([run(3), run(5)])).toEqual([
    [3, 3, 3],
    [5, 5, 5],
  ]);
  const [failed, passed] = await Promise.allSettled([
    runWorld(2, (world) => (world.rank === 0 ? world.barrier() : undefined)),
    run(4),
  ]);
  expect([failed.status, passed.status]).toEqual(['rejected', 'fulfilled']);
});
