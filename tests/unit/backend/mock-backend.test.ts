import { inspect } from 'node:util';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { memory, memoryAccountKey } from '../../../src/core/memory-account';
import { defaultGenerator } from '../../../src/core/random';
import { failureOf, failures, floats, names, outcomes, results } from './mock-worlds';

describe('a group of one', () => {
  test('works without waiting for anybody, and stays asynchronous', async () => {
    const backend = MockBackend.single();
    const data = floats(3, 4);
    const log: string[] = [];
    const done = backend.allReduce(data, 'Average').then(() => log.push('done'));
    log.push('launched');
    await done;
    expect(log).toEqual(['launched', 'done']);
    expect([...data]).toEqual([3, 4]);
    await backend.close();
  });

  test('is a world like any other', async () => {
    const [child] = await results(1, async (backend) => {
      const group = (await backend.split([0])) as MockBackend;
      const gathered = floats(0);
      await group.allGather(floats(7), gathered);
      await group.close();
      return { id: group.groupId, rank: group.rank, size: group.worldSize, gathered: [...gathered] };
    });
    expect(child).toEqual({ id: 'world/0', rank: 0, size: 1, gathered: [7] });
  });
});

describe('split', () => {
  test('keeps the order given, and names the group alike on all ranks', async () => {
    const groups = await results(4, async (backend) => {
      const first = await backend.split([3, 1]);
      const second = await backend.split([1, 2, 3]);
      const nested = await second?.split([2, 0]);
      const all = [first, second, nested].map(
        (group) => group && `${group.groupId}: ${group.rank} of ${group.worldSize}`,
      );
      for (const group of [nested, second, first]) await group?.close();
      return all;
    });
    expect(groups).toEqual([
      [undefined, undefined, undefined],
      ['world/0: 1 of 2', 'world/1: 0 of 3', 'world/1/0: 1 of 2'],
      [undefined, 'world/1: 1 of 3', undefined],
      ['world/0: 0 of 2', 'world/1: 2 of 3', 'world/1/0: 0 of 2'],
    ]);
  });
});

describe('run', () => {
  test('gives each rank a memory account and a generator of its own, the same ones in a later run', async () => {
    const world = MockBackend.createWorld(3, { seed: 7 });
    const first = await Promise.all(
      world.map((backend) =>
        backend.run(async () => {
          memoryAccountKey.get().add('other', 100 + backend.rank);
          await backend.barrier();
          return [memory.stats().live.other, defaultGenerator().nextUint32()] as const;
        }),
      ),
    );
    expect(first.map(([bytes]) => bytes)).toEqual([100, 101, 102]);
    expect(new Set(first.map(([, word]) => word)).size).toBe(3);
    const later = await Promise.all(world.map((backend) => backend.run(() => memory.stats().live.other)));
    expect(later).toEqual([100, 101, 102]);
    expect(memory.stats().live.other).toBe(0);
  });

  test('draws the same numbers for the same seed and rank, others for other seeds', async () => {
    const draw = (seed: number) => results(2, () => defaultGenerator().nextUint32(), { seed });
    const [a, again, b] = [await draw(1), await draw(1), await draw(2)];
    expect(again).toEqual(a);
    expect(new Set([...a, ...b]).size).toBe(4);
  });

  test('refuses a second function while one runs', async () => {
    const [backend] = MockBackend.createWorld(1) as [MockBackend];
    const first = backend.run(() => new Promise((resolve) => setTimeout(resolve, 5)));
    expect((await failureOf(backend.run(() => undefined))).message).toMatch(/rank 0 is running a function already/);
    await first;
  });

  test('rejects with what the function threw, sync or async, whatever it is', async () => {
    const world = MockBackend.createWorld(2);
    const thrown = await Promise.allSettled([
      world[0]?.run(() => {
        throw new TypeError('at once');
      }),
      world[1]?.run(async () => Promise.reject('a string')), // eslint-disable-line @typescript-eslint/prefer-promise-reject-errors -- what careless code throws
    ]);
    expect(thrown.map((outcome) => (outcome as PromiseRejectedResult).reason as unknown)).toEqual([
      new TypeError('at once'),
      'a string',
    ]);
  });
});

describe('close', () => {
  test('is idempotent; later calls reject with ClosedError', async () => {
    const [backend] = MockBackend.createWorld(2) as [MockBackend];
    await backend.close();
    await backend.close();
    const error = await failureOf(backend.barrier());
    expect(error.name).toBe('ClosedError');
    expect(error.message).toMatch(/barrier on rank 0: this rank has closed group world/);
  });

  test('fails the calls of others that need this rank, naming it, and leaves the rest', async () => {
    const [a, b, c] = MockBackend.createWorld(3) as [MockBackend, MockBackend, MockBackend];
    const message = floats(0);
    const exchange = [a.send(floats(4), 1), b.recv(message, 0)];
    await c.close();
    await Promise.all(exchange);
    const between = [a.send(floats(5), 1), b.recv(message, 0)];
    await Promise.all(between);
    expect([...message]).toEqual([5]);
    const errors = [await failureOf(a.barrier()), await failureOf(b.barrier())];
    expect(names(errors)).toEqual(['PeerLostError', 'PeerLostError']);
    expect(errors[0]?.message).toMatch(/rank 2 has closed group world, and barrier\(\).* on rank 0 needs it/);
    expect(errors[0]?.context.ranks).toEqual([2]);
    expect(await failureOf(a.barrier())).toMatchObject({ name: 'ClosedError', cause: { name: 'PeerLostError' } });
  });

  test('fails pending calls on both sides', async () => {
    const [a, b] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const [mine, theirs] = [failureOf(a.recv(floats(0), 1)), failureOf(b.barrier())];
    await a.close();
    expect(names([await mine, await theirs])).toEqual(['ClosedError', 'PeerLostError']);
    expect((await mine).message).toMatch(/recv on rank 0: this rank closed group world before it was done/);
  });

  test('by `await using` does the same', async () => {
    const backend = MockBackend.single();
    await backend[Symbol.asyncDispose]();
    expect((await failureOf(backend.barrier())).name).toBe('ClosedError');
  });
});

test('abort fails pending and later calls on every rank, with the reason as their cause', async () => {
  const [a, b] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
  const reason = new Error('out of memory');
  const pending = failureOf(a.barrier());
  b.abort(reason);
  for (const error of [await pending, await failureOf(a.barrier()), await failureOf(b.barrier())]) {
    expect(error).toMatchObject({ name: 'ClosedError', cause: reason });
    expect(error.message).toMatch(/group world was aborted by rank 1: out of memory/);
  }
});

describe('a rank that throws', () => {
  test('is named to the others at once, with what it said, in every group that holds it', async () => {
    const settled = await outcomes(3, async (backend) => {
      const pair = await backend.split([0, 1]);
      const others = await backend.split([0, 2]);
      if (backend.rank === 1) throw new RangeError('no data\non this rank');
      const first = await failureOf(backend.barrier());
      const inPair = pair === undefined ? undefined : await failureOf(pair.barrier());
      const later = await failureOf(backend.barrier());
      const sum = floats(1);
      await others?.allReduce(sum, 'Sum');
      await Promise.all([pair?.close(), others?.close()]);
      return { first, inPair, later, sum: sum[0] };
    });
    const [zero, , two] = settled.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : undefined));
    expect(zero?.first.message).toBe('rank 1 of group world was lost: it threw RangeError: no data\non this rank');
    expect(zero?.first).toMatchObject({
      name: 'PeerLostError',
      context: { ranks: [1], rank: 0, group: 'world' },
      cause: { name: 'RangeError' },
    });
    expect(zero?.inPair).toMatchObject({ name: 'PeerLostError', context: { group: 'world/0' } });
    for (const later of [zero?.later, two?.later])
      expect(later).toMatchObject({ name: 'ClosedError', cause: { name: 'PeerLostError' } });
    expect([zero?.sum, two?.sum]).toEqual([2, 2]);
  });

  test('is named by its rank in the group, also if it closes the group on its way out', async () => {
    const errors = await failures(4, async (backend) => {
      const group = await backend.split([3, 1]);
      try {
        if (backend.rank === 3) throw new Error('gone');
        await group?.barrier();
      } finally {
        await group?.close();
      }
    });
    expect(errors[1]?.message).toMatch(/^rank 0 \(global rank 3\) of group world\/0 was lost: it threw Error: gone$/);
  });

  test('is the first failure, also where its own call in flight fails with it', async () => {
    const [, second] = await outcomes(
      2,
      async (backend) => {
        if (backend.rank === 0) {
          const own = failureOf(backend.barrier());
          void own.then((error) => expect(error.name).toBe('ClosedError'));
          throw new Error('gone');
        }
        await backend.sleep(10);
        return [await failureOf(backend.barrier()), await failureOf(backend.barrier())];
      },
      { checks: 'order' },
    );
    expect(second).toMatchObject({
      value: [{ name: 'PeerLostError' }, { name: 'ClosedError', cause: { name: 'PeerLostError' } }],
    });
  });

  test('is told also to a rank that calls only later', async () => {
    const errors = await failures(2, async (backend) => {
      if (backend.rank === 1) throw new Error('gone');
      await new Promise((resolve) => setTimeout(resolve, 10));
      await backend.barrier();
    });
    expect(errors[0]).toMatchObject({
      name: 'PeerLostError',
      message: 'rank 1 of group world was lost: it threw Error: gone',
    });
  });
});

test('a backend and its calls print what they are', async () => {
  const [backend] = MockBackend.createWorld(2) as [MockBackend];
  expect(inspect(backend)).toBe('MockBackend <rank 0 of 2, group world, open>');
  const work = backend.barrier();
  expect(inspect(work)).toBe('Work <barrier group world #0, pending>');
  const failed = failureOf(work);
  await backend.close();
  await failed;
  expect(inspect(backend)).toBe('MockBackend <rank 0 of 2, group world, closed>');
});
