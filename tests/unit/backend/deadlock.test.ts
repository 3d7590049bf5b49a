import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failureOf, failures, floats, names, outcomes } from './mock-worlds';

const DEADLOCK = 'DeadlockError';
const HERE = /tests\/unit\/backend\/deadlock\.test\.ts:\d+:\d+/.source;

/** Deadlocks are found long before this deadline; a test that reaches it fails by its error's name. */
const options = { timeoutMs: 10_000 };

test('a rank that returned early is named, and so is who waits, in which call, at which line', async () => {
  const errors = await failures(
    3,
    async (backend) => {
      await backend.barrier();
      if (backend.rank === 1) return;
      await backend.allReduce(floats(1), 'Sum');
    },
    options,
  );
  expect(names(errors)).toEqual([DEADLOCK, undefined, DEADLOCK]);
  const lines = errors[0]?.message.split('\n') ?? [];
  expect(lines[0]).toBe('deadlock: rank 1 returned early, and ranks 0, 2 wait in vain:');
  const call = `allReduce\\(float32\\[1\\], Sum\\), collective 1 of group world, at ${HERE}`;
  expect(lines[1]).toMatch(new RegExp(`^ {2}rank 0 waits in ${call}, for rank 1$`));
  expect(lines[2]).toMatch(new RegExp(`^ {2}rank 2 waits in ${call}, for rank 1$`));
  expect(lines[3]).toMatch(
    /^ {2}rank 1 has returned and will make no more calls; its last call was barrier\(\), collective 0/,
  );
  expect(lines[4]).toMatch(/look for a loop, a condition or an early return/);
  expect(errors[0]?.context).toMatchObject({ rank: 0, group: 'world', op: 'allReduce', sequence: 1, ranks: [0, 2] });
});

test('ranks that wait for each other are named, without any deadline', async () => {
  const errors = await failures(3, (b) => b.recv(floats(0), (b.rank + 1) % 3), options);
  expect(names(errors)).toEqual([DEADLOCK, DEADLOCK, DEADLOCK]);
  expect(errors[0]?.message).toMatch(
    /^deadlock: ranks 0, 1, 2 wait for each other:\n {2}rank 0 waits in recv.*for rank 1\n/,
  );
});

test('a collective on one rank against a message on another is a deadlock', async () => {
  const errors = await failures(2, (b) => (b.rank === 0 ? b.barrier() : b.recv(floats(0), 0)), options);
  expect(names(errors)).toEqual([DEADLOCK, DEADLOCK]);
});

test('sends that cross each other, one after the other on both ranks, are a deadlock; in a batch they are not', async () => {
  const exchange = async (b: MockBackend): Promise<void> => {
    await b.send(floats(1), 1 - b.rank);
    await b.recv(floats(0), 1 - b.rank);
  };
  const errors = await failures(2, exchange, options);
  expect(names(errors)).toEqual([DEADLOCK, DEADLOCK]);
  expect(errors[0]?.message).toMatch(/put sends and receives that cross each other into one batch\(\)/);
  const batched = await failures(2, (b) =>
    b.batch([
      { op: 'send', data: floats(1), peer: 1 - b.rank },
      { op: 'recv', data: floats(0), peer: 1 - b.rank },
    ]),
  );
  expect(batched).toEqual([undefined, undefined]);
});

test('groups entered in different orders are a deadlock across groups, and both groups end', async () => {
  const settled = await outcomes(
    2,
    async (backend) => {
      const groups = [await backend.split([0, 1]), await backend.split([0, 1])] as [MockBackend, MockBackend];
      const [first, second] = backend.rank === 0 ? groups : [groups[1], groups[0]];
      const deadlock = await failureOf(first.barrier());
      const later = [await failureOf(second.barrier()), await failureOf(first.barrier())];
      for (const group of groups) await group.close();
      await backend.barrier();
      return [deadlock.name, ...later.map((error) => `${error.name}: ${(error.cause as Error).name}`)];
    },
    options,
  );
  const ended = [DEADLOCK, `ClosedError: ${DEADLOCK}`, `ClosedError: ${DEADLOCK}`];
  expect(settled).toEqual([0, 1].map(() => ({ status: 'fulfilled', value: ended })));
});

test('only the ranks concerned fail: the others go on in their own groups', async () => {
  const settled = await outcomes(
    4,
    async (backend) => {
      const low = await backend.split([0, 1]);
      const high = await backend.split([2, 3]);
      const group = (low ?? high) as MockBackend;
      const ending = backend.rank < 2 ? (await failureOf(group.recv(floats(0), 1 - group.rank))).name : 'fine';
      if (high !== undefined) for (let round = 0; round < 5; round++) await high.barrier();
      await group.close();
      return ending;
    },
    options,
  );
  expect(settled.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : outcome.reason))).toEqual([
    DEADLOCK,
    DEADLOCK,
    'fine',
    'fine',
  ]);
});

test('a rank that waits for several calls can go on if one of them can complete', async () => {
  const errors = await failures(
    3,
    async (backend) => {
      if (backend.rank === 0) {
        const fromOne = backend.recv(floats(0), 1);
        const fromTwo = backend.recv(floats(0), 2);
        await Promise.all([fromOne, fromTwo.then(() => backend.send(floats(1), 1, 1))]);
      } else if (backend.rank === 1) {
        await backend.recv(floats(0), 0, 1);
        await backend.send(floats(1), 0);
      } else {
        await new Promise((resolve) => setTimeout(resolve, 20));
        await backend.send(floats(1), 0);
      }
    },
    options,
  );
  expect(errors).toEqual([undefined, undefined, undefined]);
});

test('a Work that is launched and not awaited yet accuses nobody', async () => {
  const errors = await failures(
    2,
    async (backend) => {
      const work = backend.barrier();
      if (backend.rank === 0) await new Promise(setImmediate);
      await work;
    },
    options,
  );
  expect(errors).toEqual([undefined, undefined]);
});

test('with no source lines the message is the same without them', async () => {
  const [error] = await failures(2, (b) => b.recv(floats(0), 1 - b.rank), { ...options, sourceLines: false });
  expect(error?.message).toMatch(/rank 0 waits in recv\(float32\[1\], from rank 1, tag 0\), group world, for rank 1/);
});

describe('bare backends, without run', () => {
  test('see ranks that wait for each other', async () => {
    const [first, second] = MockBackend.createWorld(2, options) as [MockBackend, MockBackend];
    const errors = await Promise.all([failureOf(first.recv(floats(0), 1)), failureOf(second.barrier())]);
    expect(names(errors)).toEqual([DEADLOCK, DEADLOCK]);
  });

  test('do not accuse a rank of which they know nothing', async () => {
    const [first, second] = MockBackend.createWorld(2, options) as [MockBackend, MockBackend];
    const waiting = first.barrier().then(() => 'done');
    await new Promise((resolve) => setTimeout(resolve, 30));
    await second.barrier();
    expect(await waiting).toBe('done');
  });
});
