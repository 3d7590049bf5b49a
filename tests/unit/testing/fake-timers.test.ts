import { MockBackend, runWorld } from '../../../src/testing/index';

/** Jest's fake timers replace the globals: nothing of ours may depend on those. */
beforeEach(() => void jest.useFakeTimers());
afterEach(() => void jest.useRealTimers());

test('collectives, also under a random schedule, go on', async () => {
  for (const schedule of ['fifo', 'random'] as const) {
    await runWorld(
      4,
      async (world) => {
        for (let round = 0; round < 5; round++) await world.barrier();
      },
      { schedule },
    );
  }
});

test('deadlocks are found', async () => {
  await expect(runWorld(2, (world) => (world.rank === 0 ? world.barrier() : undefined))).rejects.toThrow(/^deadlock/);
});

test('deadlines pass', async () => {
  const [first] = MockBackend.createWorld(2) as [MockBackend];
  await expect(first.barrier({ timeoutMs: 30 })).rejects.toMatchObject({ code: 'LOCKSTEP_TIMEOUT' });
  await expect(first.close()).resolves.toBeUndefined();
});

test('virtual time moves', async () => {
  await runWorld(2, (world) => (world.group.backend as MockBackend).sleep(1e9), { clock: 'virtual' });
});

test('a rank that waits for a fake timer is what the stall report is for', async () => {
  const stuck = runWorld(
    2,
    async (world) => {
      if (world.rank === 1) await new Promise((resolve) => setTimeout(resolve, 10));
      await world.barrier();
    },
    { stallMs: 80 },
  );
  await expect(stuck).rejects.toThrow(
    /^No rank made progress for 80 ms:\n {2}rank 0 waits in barrier.*\n {2}rank 1 is running; it made no call\n.*fake timers\?/,
  );
});

test('and goes on when the test moves the fake time', async () => {
  const running = runWorld(2, async (world) => {
    if (world.rank === 1) await new Promise((resolve) => setTimeout(resolve, 10_000));
    await world.barrier();
    return world.rank;
  });
  await jest.advanceTimersByTimeAsync(10_000);
  expect(await running).toEqual([0, 1]);
});
