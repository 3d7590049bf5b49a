import { MockBackend } from '../../src/backend/mock/mock-backend';
import { failureOf, floats } from '../unit/backend/mock-worlds';

/** Bare backends: nothing is known about a rank between its calls, so that only the deadline ends a wait. */
function pair(options = {}): [MockBackend, MockBackend] {
  return MockBackend.createWorld(2, options) as [MockBackend, MockBackend];
}

test('the deadline of a call is its own, else that of the world', async () => {
  const [first] = pair({ timeoutMs: 40 });
  const start = performance.now();
  const error = await failureOf(first.barrier());
  expect(error).toMatchObject({ name: 'CollectiveTimeoutError', code: 'LOCKSTEP_TIMEOUT', scope: 'group' });
  expect(error.message).toMatch(
    /^barrier\(\), collective 0 of group world, at tests\/fault\/timeouts\.test\.ts:\d+:\d+, on rank 0: not finished within 40 ms\. Rank 1 did not arrive\. If a rank is only slow, pass a larger timeoutMs/,
  );
  expect(performance.now() - start).toBeGreaterThanOrEqual(38);
  const [other] = pair();
  expect((await failureOf(other.barrier({ timeoutMs: 20 }))).message).toMatch(/within 20 ms/);
});

test('a receive that nobody sends to names its peer', async () => {
  const [first] = pair();
  const error = await failureOf(first.recv(floats(0), 1, 9, { timeoutMs: 20 }));
  expect(error.message).toMatch(/recv\(float32\[1\], from rank 1, tag 9\), group world.*Rank 1 did not arrive/);
  expect(error.context).toMatchObject({ op: 'recv', ranks: [1], rank: 0 });
});

test('the earliest of several deadlines ends the group, whichever call was first', async () => {
  const [first] = pair({ timeoutMs: 10_000 });
  const long = failureOf(first.barrier());
  const short = failureOf(first.recv(floats(0), 1, 0, { timeoutMs: 20 }));
  expect((await short).context.op).toBe('recv');
  expect((await long).message).toBe((await short).message);
});

test('a call that nobody awaits has a deadline too, and ends the group unheard', async () => {
  const [first, second] = pair();
  const work = first.barrier({ timeoutMs: 20 });
  await new Promise((resolve) => setTimeout(resolve, 60));
  expect(work.isCompleted).toBe(true);
  expect(await failureOf(second.barrier())).toMatchObject({
    name: 'ClosedError',
    cause: { name: 'CollectiveTimeoutError' },
  });
});

test('a call that is met in time takes its deadline with it', async () => {
  const [first, second] = pair();
  const waiting = first.barrier({ timeoutMs: 50 });
  await new Promise((resolve) => setTimeout(resolve, 10));
  await Promise.all([waiting, second.barrier()]);
  await new Promise((resolve) => setTimeout(resolve, 80));
  await Promise.all([first.barrier(), second.barrier()]);
});

test('only the group of the call ends', async () => {
  const world = MockBackend.createWorld(2);
  const groups = (await Promise.all(world.map((backend) => backend.split([0, 1])))) as MockBackend[];
  await failureOf((groups[0] as MockBackend).barrier({ timeoutMs: 20 }));
  await Promise.all(world.map((backend) => backend.barrier()));
});

test('a bare rank waits 4 seconds where nothing else is said, and learns who is missing and how to find it sooner', async () => {
  const [first] = MockBackend.createWorld(3, { clock: 'virtual' });
  const error = await failureOf((first as MockBackend).barrier());
  expect(error.message).toMatch(/on rank 0: not finished within 4000 ms\. Ranks 1, 2 did not arrive\./);
  expect(error.message).toContain('inside runWorld or backend.run(fn), ranks that wait in vain are found at once');
});
