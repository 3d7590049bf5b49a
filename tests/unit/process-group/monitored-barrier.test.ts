import { systemClock } from '../../../src/core/clock';
import { MockBackend } from '../../../src/backend/registry';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { WORLD_SIZES, onRanks, rejectionOf } from './worlds';

/** For ranks that are late, not for the passing case: that takes no time. */
const TIMEOUT_MS = 60;

function sleep(delayMs: number): Promise<void> {
  return new Promise((resolve) => systemClock.schedule(resolve, delayMs, true));
}

describe.each(WORLD_SIZES)('on %i ranks', (size) => {
  test('nobody goes on before everybody has arrived', async () => {
    let arrived = 0;
    await onRanks(size, async (group) => {
      if (group.rank === size - 1) await sleep(20);
      arrived += 1;
      await group.monitoredBarrier();
      expect(arrived).toBe(size);
    });
  });

  test.each([{}, { portable: true }, { schedule: 'random', seed: 5 }] as const)(
    'several in a row, among other calls (%j)',
    async (options) => {
      await onRanks(
        size,
        async (group) => {
          for (let i = 0; i < 3; i++) {
            await group.monitoredBarrier({ timeoutMs: 5000 });
            await group.barrier();
          }
        },
        options,
      );
    },
  );
});

describe('ranks that do not arrive', () => {
  /** The errors of the ranks that arrive, where `absent` ranks come only once the others have given up. */
  function errorsWithout(size: number, absent: readonly number[]): Promise<(Error | undefined)[]> {
    return onRanks(size, async (group) => {
      if (absent.includes(group.rank)) {
        await sleep(3 * TIMEOUT_MS);
        return undefined;
      }
      return rejectionOf(group.monitoredBarrier({ timeoutMs: TIMEOUT_MS }));
    });
  }

  test.each([
    [3, [2]],
    [4, [0]],
    [4, [1, 3]],
    [7, [0, 2, 6]],
  ])('of %i ranks, %j are late: every other rank`s error names all of them', async (size, absent) => {
    const errors = await errorsWithout(size, absent);
    errors.forEach((error, rank) => {
      if (absent.includes(rank)) return;
      expect(error).toMatchObject({
        name: 'CollectiveTimeoutError',
        context: { rank, group: 'world', op: 'monitoredBarrier', ranks: absent },
      });
      const names = absent.length === 1 ? `rank ${absent[0]}` : `ranks ${absent.join(', ')}`;
      expect(error?.message).toMatch(
        new RegExp(`^monitoredBarrier on rank \\d of group world: ${names} did not arrive within ${TIMEOUT_MS} ms`),
      );
    });
  });

  test('the late rank hears that the others have given up on it', async () => {
    const errors = await onRanks(3, async (group) => {
      if (group.rank === 1) await sleep(3 * TIMEOUT_MS);
      return rejectionOf(group.monitoredBarrier({ timeoutMs: TIMEOUT_MS }));
    });
    expect(errors[1]).toMatchObject({ name: 'CollectiveTimeoutError', context: { rank: 1, ranks: [1] } });
    expect(errors[1]?.message).toMatch(/on rank \d of group world: rank 1 did not arrive/);
  });

  test('the group has ended then, on every rank, with that error as the cause', async () => {
    await onRanks(3, async (group) => {
      if (group.rank === 2) await sleep(3 * TIMEOUT_MS);
      else await rejectionOf(group.monitoredBarrier({ timeoutMs: TIMEOUT_MS }));
      const error = await rejectionOf(group.barrier());
      expect(error).toMatchObject({ name: 'ClosedError' });
      expect(error.message).toContain('rank 2 did not arrive');
    });
  });

  test('a rank that throws is named at once, together with those that are late', async () => {
    const results = onRanks(4, async (group) => {
      if (group.rank === 1) throw new Error('boom');
      if (group.rank === 3) await sleep(30);
      return rejectionOf(group.monitoredBarrier({ timeoutMs: 10_000 })).then((error) => errors.set(group.rank, error));
    });
    const errors = new Map<number, Error>();
    await expect(results).rejects.toThrow('boom');
    expect(errors.get(0)).toMatchObject({ name: 'PeerLostError' });
    expect(errors.get(0)?.message).toMatch(/ranks? 1.* did not arrive.*boom/s);
    expect(errors.get(2)?.message).toMatch(/boom/);
  });

  test('ranks that have returned are named at once, without waiting for the timeout', async () => {
    const backends = MockBackend.createWorld(4);
    const ends = await Promise.allSettled(
      backends.map((backend) =>
        backend.run(async () => {
          if (backend.rank % 2 === 1) return;
          await new ProcessGroup(backend).monitoredBarrier({ timeoutMs: 15_000 });
        }),
      ),
    );
    for (const rank of [0, 2]) {
      const end = ends[rank] as PromiseRejectedResult;
      expect(end.reason).toMatchObject({ name: 'DeadlockError', context: { rank, ranks: [1, 3] } });
      expect((end.reason as Error).message).toContain('ranks 1, 3 did not arrive and never will; all other ranks did');
    }
    await Promise.all(backends.map((backend) => backend.close()));
  });

  test('on a virtual clock the timeout takes no time', async () => {
    const errors = await onRanks(
      3,
      async (group) => {
        const { clock } = group.backend as MockBackend;
        if (group.rank === 1) await new Promise<void>((resolve) => clock.schedule(resolve, 3_600_000, true));
        else return rejectionOf(group.monitoredBarrier({ timeoutMs: 600_000 }));
        return undefined;
      },
      { clock: 'virtual' },
    );
    expect(errors[0]?.message).toContain('rank 1 did not arrive within 600000 ms; all other ranks did');
  });

  test('in a subgroup the names are ranks of the subgroup', async () => {
    await onRanks(4, async (world) => {
      const group = await world.newGroup([1, 2, 3]);
      if (world.rank === 3) await sleep(3 * TIMEOUT_MS);
      if (!group.isMember || world.rank === 3) return;
      const error = await rejectionOf(group.monitoredBarrier({ timeoutMs: TIMEOUT_MS }));
      expect(error).toMatchObject({ context: { group: 'world/0', ranks: [2] } });
    });
  });

  test('the other groups live on', async () => {
    await onRanks(3, async (world) => {
      const group: ProcessGroup = await world.newGroup([0, 1, 2]);
      if (group.rank === 2) await sleep(3 * TIMEOUT_MS);
      else await rejectionOf(group.monitoredBarrier({ timeoutMs: TIMEOUT_MS }));
      expect(await world.allGatherObjects(world.rank)).toEqual([0, 1, 2]);
    });
  });
});

test('a bad timeout or option is refused', async () => {
  await onRanks(2, async (group) => {
    const error = await rejectionOf(group.monitoredBarrier({ timeoutMs: -1 }));
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    const unknown = await rejectionOf(group.monitoredBarrier({ timeout: 5 } as object));
    expect(unknown.message).toContain("unknown key 'timeout'");
    await group.monitoredBarrier();
  });
});
