import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failureOf, failures, floats, names, outcomes, results } from './mock-worlds';

const MISMATCH = 'CollectiveMismatchError';

test('ranks that call different things all fail at once, with a list of what each called', async () => {
  const errors = await failures(3, (backend) => {
    if (backend.rank === 1) return backend.broadcast(floats(1), 0);
    return backend.allReduce(floats(1, 2), 'Sum');
  });
  expect(names(errors)).toEqual([MISMATCH, MISMATCH, MISMATCH]);
  const lines = errors[0]?.message.split('\n') ?? [];
  expect(lines[0]).toBe('the ranks of group world disagree about collective 0:');
  expect(lines[1]).toMatch(
    /^ {2}rank 0: allReduce\(float32\[2\], Sum\) at tests\/unit\/backend\/mismatch\.test\.ts:\d+:\d+$/,
  );
  expect(lines[2]).toMatch(/^ {2}rank 1: broadcast\(float32\[1\], from rank 0\) at /);
  expect(lines[3]).toMatch(/^ {2}rank 2: allReduce/);
  expect(lines[4]).toMatch(/Every rank must make the same collectives, in the same order/);
  expect(errors[2]?.context).toMatchObject({ rank: 2, group: 'world', op: 'allReduce', sequence: 0 });
});

test.each<[string, (backend: MockBackend) => PromiseLike<unknown>]>([
  ['sizes', (b) => b.allReduce(new Float32Array(4 + b.rank), 'Sum')],
  ['dtypes', (b) => b.allReduce(b.rank === 0 ? floats(1) : new Int32Array(1), 'Sum')],
  ['reduce ops', (b) => b.allReduce(floats(1), b.rank === 0 ? 'Sum' : 'Max')],
  ['roots', (b) => b.broadcast(floats(1), b.rank)],
  ['counts', (b) => b.allGather(floats(1), floats(1, 2, 3), { counts: b.rank === 0 ? [1, 2] : [2, 1] })],
  ['groups to split', (b) => b.split(b.rank === 0 ? [0, 1] : [1, 0])],
  ['all-to-all counts', (b) => b.allToAll(floats(1, 2), floats(1, 2), b.rank === 0 ? { sendCounts: [1, 0] } : {})],
])('ranks that disagree in %s fail', async (_what, call) => {
  expect(names(await failures(2, call))).toEqual([MISMATCH, MISMATCH]);
});

test('an all-to-all says which pair disagrees', async () => {
  const [error] = await failures(2, (b) =>
    b.allToAll(floats(1, 2), floats(1, 2), b.rank === 0 ? { sendCounts: [1, 0] } : {}),
  );
  expect(error?.message).toMatch(/what rank 0 sends to rank 1 is not what rank 1 receives from rank 0/);
});

test('the list holds the ranks that were on their way, and names those that were not', async () => {
  const world = MockBackend.createWorld(4);
  const calls = [0, 1, 3].map((rank) =>
    (world[rank] as MockBackend).allReduce(new Float32Array(rank === 0 ? 1 : 2), 'Sum'),
  );
  for (const call of calls) {
    const error = await failureOf(call);
    expect(error.name).toBe(MISMATCH);
    expect(error.message).toMatch(/rank 2: not called yet\n {2}rank 3: allReduce\(float32\[2\], Sum\)/);
  }
});

test('the group has ended: later calls reject with ClosedError, whose cause is the mismatch', async () => {
  const world = MockBackend.createWorld(3);
  const [first, second, third] = world as [MockBackend, MockBackend, MockBackend];
  await failureOf(Promise.all([first.barrier(), second.split([0])]));
  for (const backend of [first, second, third]) {
    const error = await failureOf(backend.barrier());
    expect(error).toMatchObject({ name: 'ClosedError', cause: { name: MISMATCH } });
    expect(error.message).toMatch(
      /barrier on rank \d: group world has failed.*First failure|first failure: the ranks of group world disagree/s,
    );
  }
});

test('other groups go on', async () => {
  const sums = await results(4, async (backend) => {
    const pair = await backend.split(backend.rank < 2 ? [0, 1] : [0, 1]);
    const other = await backend.split([2, 3]);
    await pair?.allReduce(new Float32Array(1 + backend.rank), 'Sum').catch(() => undefined);
    const data = floats(backend.rank);
    await other?.allReduce(data, 'Sum');
    const all = floats(1);
    await backend.allReduce(all, 'Sum');
    await pair?.close();
    await other?.close();
    return [data[0], all[0]];
  });
  expect(sums).toEqual([
    [0, 4],
    [1, 4],
    [5, 4],
    [5, 4],
  ]);
});

test('a failed call leaves the buffers of its caller as they were', async () => {
  const settled = await outcomes(2, async (backend) => {
    const data = floats(7, 8);
    const count = backend.rank === 0 ? 2 : 1;
    await backend.allReduce(data.subarray(0, count), 'Sum').catch(() => undefined);
    return [...data];
  });
  expect(settled).toEqual([0, 1].map(() => ({ status: 'fulfilled', value: [7, 8] })));
});

test('a Work that nobody awaits fails unheard, without ending the process, and ends the group', async () => {
  const world = MockBackend.createWorld(2, { checks: 'order' });
  const [first, second] = world as [MockBackend, MockBackend];
  const launched = [first.barrier(), second.allReduce(floats(1), 'Sum')];
  await new Promise(setImmediate);
  expect(launched.every((work) => work.isCompleted)).toBe(true);
  expect(await failureOf(first.barrier())).toMatchObject({ name: 'ClosedError', cause: { name: MISMATCH } });
});

describe('a send and the receive that it meets', () => {
  test.each<[string, Float32Array | Int32Array]>([
    ['length', floats(1, 2)],
    ['dtype', new Int32Array(1)],
  ])('must agree in %s', async (_what, data) => {
    const errors = await failures(2, (b) => (b.rank === 0 ? b.send(floats(1), 1, 3) : b.recv(data, 0, 3)));
    expect(names(errors)).toEqual([MISMATCH, MISMATCH]);
    expect(errors[1]?.message).toMatch(
      /disagree:\n {2}rank 0: send\(float32\[1\], to rank 1, tag 3\) at .*\n {2}rank 1: recv\(/,
    );
  });
});
