import { MockBackend } from '../../../src/backend/registry';
import { systemClock } from '../../../src/core/clock';
import type { Logger } from '../../../src/core/logger';
import { ReduceOp } from '../../../src/core/reduce-op';
import type { CollectiveEnd, CollectiveStart, PeerLost, Poisoned } from '../../../src/process-group/events';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { World } from '../../../src/process-group/world';
import { isGradEnabled, noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { WORLD_SIZES, onRanks, rejectionOf } from './worlds';

function pair(options?: { readonly logger: Logger }): [ProcessGroup, ProcessGroup] {
  const [first, second] = MockBackend.createWorld(2);
  return [new ProcessGroup(first as MockBackend, options), new ProcessGroup(second as MockBackend, options)];
}

/** Keeps what it is told. */
function recordingLogger(): Logger & { readonly errors: string[] } {
  const errors: string[] = [];
  const ignore = (): void => undefined;
  return { errors, debug: ignore, info: ignore, warn: ignore, error: (message) => errors.push(message) };
}

describe('collectiveStart and collectiveEnd', () => {
  test('frame a collective, and say which it is', async () => {
    await onRanks(2, async (group) => {
      const seen: (CollectiveStart | CollectiveEnd)[] = [];
      group.on('collectiveStart', (event) => seen.push(event));
      group.on('collectiveEnd', (event) => seen.push(event));
      await group.barrier();
      const work = group.allReduce(Tensor.zeros([6]), ReduceOp.Sum);
      expect(seen).toHaveLength(3); // the start has been told before the call returned
      await work;
      expect(seen).toHaveLength(4); // and the end before the caller went on
      const call = { op: 'allReduce', sequence: 1, bytes: 24, group: 'world', rank: group.rank };
      expect(seen[2]).toEqual(call);
      expect(seen[3]).toEqual({ ...call, durationMs: expect.any(Number) });
      expect((seen[3] as CollectiveEnd).durationMs).toBeGreaterThanOrEqual(0);
      expect(seen[0]).toMatchObject({ op: 'barrier', sequence: 0, bytes: 0 });
    });
  });

  test.each(WORLD_SIZES)('count the bytes that the backend`s ledger counts, on %i ranks', async (size) => {
    await onRanks(size, async (group) => {
      const bytes: Record<string, number> = {};
      group.on('collectiveEnd', (event) => (bytes[event.op] = (bytes[event.op] ?? 0) + event.bytes));
      const rows = Tensor.zeros([size * 2, 3]);
      await group.allReduce(rows);
      await group.broadcast(rows, size - 1);
      await group.reduce(rows, 0);
      await group.allGather(rows);
      await group.reduceScatter(rows);
      await group.gather(rows, size - 1);
      await group.scatter(rows, 0);
      await group.allToAll(rows);
      await group.barrier();
      await group.allGatherObjects('x'.repeat(group.rank * 7));
      await group.gatherObjects('x'.repeat(group.rank * 3), size - 1);
      await group.scatterObjects(Array.from({ length: size }, (_unused, rank) => 'y'.repeat(rank)));
      if (size > 1) {
        const [next, previous] = [(group.rank + 1) % size, (group.rank + size - 1) % size];
        await Promise.all([group.send(rows, next), group.recv(Tensor.zeros([size * 2, 3]), previous)]);
        await group.batch([
          { op: 'send', data: rows, peer: next },
          { op: 'recv', data: Tensor.zeros([size * 2, 3]), peer: previous },
        ]);
      }
      const { ledger } = group.backend as MockBackend;
      for (const [op, entry] of Object.entries(ledger)) expect([op, bytes[op] ?? 0]).toEqual([op, entry.bytes]);
    });
  });

  test('say nothing of a call that was refused', async () => {
    const group = ProcessGroup.mock();
    const listener = jest.fn();
    group.on('collectiveStart', listener).on('collectiveEnd', listener);
    await rejectionOf(group.broadcast(Tensor.zeros([1]), 5));
    await rejectionOf(group.allReduce(Tensor.zeros([1], { requiresGrad: true })));
    await group.close();
    await rejectionOf(group.barrier());
    expect(listener).not.toHaveBeenCalled();
  });

  test('the end of a failed collective carries what it rejects with', async () => {
    await onRanks(2, async (group) => {
      const ends: CollectiveEnd[] = [];
      group.on('collectiveEnd', (event) => ends.push(event));
      const error = await rejectionOf(group.allReduce(Tensor.zeros([group.rank + 1])));
      expect(ends).toHaveLength(1);
      expect(ends[0]?.error).toBe(error);
    });
  });

  test('a listener does not count as waiting for the Work', async () => {
    const [first, second] = pair();
    first.on('collectiveEnd', () => undefined);
    const work = first.barrier();
    expect(work.isAwaited).toBe(false);
    await second.barrier();
    await work;
    await Promise.all([first.close(), second.close()]);
  });

  test('without a listener no clock is read', async () => {
    const [first, second] = pair();
    const reads = async (): Promise<number> => {
      const now = jest.spyOn(systemClock, 'now');
      await Promise.all([first.barrier(), second.barrier()]);
      const { length } = now.mock.calls;
      now.mockRestore();
      return length;
    };
    const silent = await reads();
    first.on('closed', () => undefined).on('poisoned', () => undefined);
    expect(await reads()).toBe(silent);
    first.on('collectiveEnd', () => undefined);
    expect(await reads()).toBe(silent + 2);
    await Promise.all([first.close(), second.close()]);
  });
});

describe('whose events', () => {
  test('a group has its own, a world those of all its groups', async () => {
    await onRanks(2, async (group, world) => {
      const [ofGroup, ofSubgroup, ofWorld]: [string[], string[], string[]] = [[], [], []];
      const sub = await world.newGroup([0, 1]);
      group.on('collectiveEnd', (event) => ofGroup.push(event.group));
      sub.on('collectiveEnd', (event) => ofSubgroup.push(event.group));
      world.on('collectiveEnd', (event) => ofWorld.push(event.group));
      const nested = await sub.newGroup([0, 1]);
      await group.barrier();
      await sub.barrier();
      await nested.barrier();
      expect([ofGroup, ofSubgroup, ofWorld]).toEqual([['world'], ['world/0'], ['world', 'world/0', 'world/0/0']]);
    });
  });

  test('a listener runs with the ambient state in which it was added, whichever rank completes the collective', async () => {
    await onRanks(3, async (group) => {
      const isOdd = group.rank % 2 === 1;
      const modes: boolean[] = [];
      const listen = (): unknown => group.on('collectiveEnd', () => modes.push(isGradEnabled()));
      if (isOdd) noGrad(listen);
      else listen();
      await group.barrier();
      await (isOdd ? group.barrier() : noGrad(() => group.barrier()));
      expect(modes).toEqual([!isOdd, !isOdd]);
    });
  });
});

describe('listeners', () => {
  test('that throw or reject are logged, and change nothing for the collective or for others', async () => {
    const logger = recordingLogger();
    const [first, second] = pair({ logger });
    const seen: string[] = [];
    first.on('collectiveStart', () => {
      throw new Error('disk full');
    });
    first.on('collectiveStart', () => seen.push('start'));
    const upload = async (): Promise<void> => Promise.reject(new Error('metrics server is away'));
    // eslint-disable-next-line @typescript-eslint/no-misused-promises -- the mistake that this test is about
    first.on('collectiveEnd', upload);
    first.on('collectiveEnd', () => seen.push('end'));
    const tensors = [Tensor.from([1]), Tensor.from([2])] as const;
    await Promise.all([first.allReduce(tensors[0]), second.allReduce(tensors[1])]);
    await first.close();
    await second.close();
    expect(tensors.map((tensor) => tensor.item())).toEqual([3, 3]);
    expect(seen).toEqual(['start', 'end']);
    expect(logger.errors).toHaveLength(2);
    expect(logger.errors[0]).toMatch(/a listener of 'collectiveStart' failed; nothing else did: Error: disk full/);
    expect(logger.errors[1]).toMatch(/a listener of 'collectiveEnd' failed; .*metrics server is away/);
  });

  test('may start collectives', async () => {
    await onRanks(3, async (group) => {
      const sums: Promise<number>[] = [];
      const sum = async (): Promise<number> => {
        const tensor = Tensor.from([1]);
        await group.allReduce(tensor);
        return tensor.item();
      };
      group.once('collectiveEnd', () => void sums.push(sum()));
      await group.barrier();
      expect(await Promise.all(sums)).toEqual([3]);
    });
  });

  test('are told under Jest`s fake timers too', async () => {
    jest.useFakeTimers();
    try {
      const group = ProcessGroup.mock();
      const listener = jest.fn();
      group.on('collectiveEnd', listener);
      await group.barrier();
      expect(listener).toHaveBeenCalledTimes(1);
      await group.close();
    } finally {
      jest.useRealTimers();
    }
  });

  test('once and off', async () => {
    const group = ProcessGroup.mock();
    const [always, onlyOnce, never, both] = [jest.fn(), jest.fn(), jest.fn(), jest.fn()];
    group.on('collectiveEnd', always).once('collectiveEnd', onlyOnce);
    group.on('collectiveEnd', never).off('collectiveEnd', never);
    group.on('collectiveEnd', both).on('collectiveStart', both).off('collectiveEnd', both);
    group.off('closed', never);
    for (let i = 0; i < 3; i++) await group.barrier();
    expect([always, onlyOnce, never, both].map((listener) => listener.mock.calls.length)).toEqual([3, 1, 0, 3]);
    await group.close();
  });

  test('of an event that does not exist, or that are no functions, are refused', () => {
    const group = ProcessGroup.mock();
    expect(() => group.on('collectivEnd' as 'collectiveEnd', () => undefined)).toThrow(
      "there is no event 'collectivEnd'; the events are collectiveStart, collectiveEnd, peerLost, poisoned, closed.",
    );
    expect(() => group.once('closed', 'x' as never)).toThrow("listener of 'closed': expected a function, got string.");
  });
});

describe('the end of a group', () => {
  test('poisoned tells the first failure, once', async () => {
    await onRanks(2, async (group) => {
      const events: Poisoned[] = [];
      group.on('poisoned', (event) => events.push(event));
      await rejectionOf(group.rank === 0 ? group.barrier() : group.allReduce(Tensor.zeros([1])));
      await rejectionOf(group.barrier());
      expect(events).toEqual([{ group: 'world', rank: group.rank, error: expect.anything() }]);
      expect(events[0]?.error.name).toBe('CollectiveMismatchError');
    });
  });

  test('poisoned is told on the ranks that were not in the call, when they make theirs', async () => {
    await onRanks(3, async (group) => {
      const events: Poisoned[] = [];
      group.on('poisoned', (event) => events.push(event));
      if (group.rank === 1) group.on('collectiveEnd', () => undefined);
      if (group.rank === 2) group.abort(new Error('stop'));
      await rejectionOf(group.barrier());
      expect(events.map((event) => event.error.message)).toEqual(['stop']);
    });
  });

  test('a Work that nobody awaits poisons all the same', async () => {
    const [first, second] = pair();
    const poisoned = jest.fn();
    first.on('poisoned', poisoned);
    void first.allReduce(Tensor.zeros([2])).isCompleted;
    await rejectionOf(second.barrier());
    expect(poisoned).toHaveBeenCalledTimes(1);
    await Promise.all([first.close(), second.close()]);
  });

  test('peerLost names the ranks that are gone', async () => {
    const backends = MockBackend.createWorld(3);
    const lost: PeerLost[] = [];
    const bodies = backends.map((backend, rank) =>
      backend.run(async () => {
        const group = new ProcessGroup(backend);
        group.on('peerLost', (event) => lost.push(event));
        if (rank === 1) throw new Error('out of memory');
        await rejectionOf(group.barrier());
      }),
    );
    await Promise.allSettled(bodies);
    expect(lost.map(({ rank, ranks }) => ({ rank, ranks }))).toEqual([
      { rank: 0, ranks: [1] },
      { rank: 2, ranks: [1] },
    ]);
    expect(lost[0]?.error.message).toContain('out of memory');
    await Promise.all(backends.map((backend) => backend.close()));
  });

  test('closed is told once, also by the world, for each group', async () => {
    const world = World.mock();
    const names: string[] = [];
    world.on('closed', (event) => names.push(event.group));
    const sub = await world.newGroup([0]);
    const listener = jest.fn();
    sub.on('closed', listener);
    await world.close();
    await world.close();
    expect(names).toEqual(['world/0', 'world']);
    expect(listener).toHaveBeenCalledTimes(1);
  });
});
