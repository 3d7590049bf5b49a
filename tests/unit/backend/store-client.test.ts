/** The store as a rank uses it, over real connections. */
import { inspect } from 'node:util';
import { failureOf } from './mock-worlds';
import { StoreJob, TOKEN } from './store-jobs';
import { StoreClient } from '../../../src/backend/grpc/store-client';

const text = (value: Uint8Array | undefined): string | undefined =>
  value === undefined ? undefined : Buffer.from(value).toString();

let job: StoreJob;
beforeEach(() => void (job = new StoreJob()));
afterEach(() => job.close());

/** Clients of two ranks of one job. */
async function two(): Promise<readonly [StoreClient, StoreClient]> {
  const server = await job.store(2);
  const connect = async (rank: number): Promise<StoreClient> =>
    new StoreClient(await job.connect(server, { rank, worldSize: 2 }), 5000);
  return [await connect(0), await connect(1)];
}

test('what one rank sets the other gets, empty keys and values and a MiB too', async () => {
  const [a, b] = await two();
  await a.set('', '');
  await a.set('large', new Uint8Array(1024 * 1024).fill(7));
  expect(text(await b.get(''))).toBe('');
  expect(Buffer.alloc(1024 * 1024, 7).equals(await b.get('large'))).toBe(true);
  expect(await b.numKeys()).toBe(2);
  expect([await b.delete(''), await a.delete('')]).toEqual([true, false]);
});

test('get and wait settle when another rank has set the keys', async () => {
  const [a, b] = await two();
  const got = a.get('x');
  const waited = a.wait(['x', 'y']);
  await b.set('x', 'here');
  expect(text(await got)).toBe('here');
  await b.set('y', '');
  await waited;
  await a.wait([]);
});

test('add is atomic between ranks', async () => {
  const [a, b] = await two();
  const sums = await Promise.all(Array.from({ length: 20 }, (_unused, i) => (i % 2 ? a : b).add('n', 1)));
  expect(sums.sort((x, y) => x - y)).toEqual(Array.from({ length: 20 }, (_unused, i) => i + 1));
});

test('add to text fails for its caller alone', async () => {
  const [a, b] = await two();
  await a.set('k', 'text');
  const error = await failureOf(a.add('k', 1));
  expect(error).toMatchObject({ name: 'InvalidArgumentError', scope: 'call', context: { op: 'add', rank: 0 } });
  expect(error.message).toMatch(/"k" holds "text", which is not a whole number/);
  expect(await a.add('n', 1)).toBe(1);
  expect(text(await b.get('k'))).toBe('text');
});

test('of many compareAndSet with one expectation one wins, and all learn the value', async () => {
  const [a, b] = await two();
  const results = await Promise.all([a, b, a, b].map((store, i) => store.compareAndSet('leader', '', String(i))));
  expect(results.filter(({ isSet }) => isSet)).toHaveLength(1);
  expect(new Set(results.map(({ value }) => text(value))).size).toBe(1);
  expect(await a.compareAndSet('absent', 'old', 'new')).toEqual({ isSet: false, value: undefined });
});

test('prefixes nest, and count their own keys', async () => {
  const [a, b] = await two();
  await a.prefix('a').prefix('b').set('k', '1');
  await a.prefix('a').set('k', '2');
  expect(text(await b.get('a/b/k'))).toBe('1');
  expect(text(await b.prefix('a').get('b/k'))).toBe('1');
  expect([await b.numKeys(), await b.prefix('a').numKeys(), await b.prefix('a/b').numKeys()]).toEqual([2, 2, 1]);
});

test('every wait has a deadline, and the message names the keys that are missing', async () => {
  const store = await job.client({}, 100);
  await store.set('there', '');
  const error = await failureOf(store.wait(['there', 'not there', 'nor "this"']));
  expect(error).toMatchObject({ name: 'CollectiveTimeoutError' });
  expect(error.message).toMatch(/no value for "not there", "nor \\"this\\"" within 100 ms/);
  expect((await failureOf(store.get('k', { timeoutMs: 50 }))).message).toMatch(/"k" within 50 ms/);
  expect(await failureOf(store.get('k', { timeoutMs: 0 }))).toMatchObject({ name: 'InvalidArgumentError' });
  await store.set('k', 'later'); // what timed out left nothing behind
  expect(text(await store.get('k'))).toBe('later');
});

test('mistakes are refused before anything is sent', async () => {
  const store = await job.client();
  expect((await failureOf(store.add('n', 0.5))).message).toMatch(/whole number as the amount, got 0.5/);
  expect((await failureOf(store.set('k', 5 as never))).message).toMatch(/string or a Uint8Array/);
  expect((await failureOf(store.get(undefined as never))).message).toMatch(/expected a key/);
  expect(await store.numKeys()).toBe(0);
});

test('a value beyond the limit fails for its caller alone', async () => {
  const store = await job.client({ limits: { valueBytes: 100 } });
  expect((await failureOf(store.set('k', 'x'.repeat(101)))).message).toMatch(/101 bytes; at most 100/);
  await store.set('k', 'x'.repeat(100));
});

test('a store that is gone fails what waits and what comes later, and names rank 0', async () => {
  const server = await job.store(1);
  const connection = await job.connect(server, { rank: 0, worldSize: 1 });
  const store = new StoreClient(connection, 60_000);
  const waiting = failureOf(store.get('k'));
  await store.set('answered', '1');
  await server.close();
  for (const error of [await waiting, await failureOf(store.set('k', ''))]) {
    expect(error).toMatchObject({ name: 'PeerLostError', context: { ranks: [0] } });
    expect(error.message).toMatch(/store at 127.0.0.1:\d+.*rank 0.*is gone: the store was closed/);
  }
});

test('after close() calls reject, pending ones too', async () => {
  const server = await job.store(1);
  const connection = await job.connect(server, { rank: 0, worldSize: 1 });
  const store = new StoreClient(connection, 60_000);
  const waiting = failureOf(store.get('k'));
  await connection.close();
  await connection.close();
  expect(await waiting).toMatchObject({ name: 'ClosedError' });
  expect(await failureOf(store.set('k', ''))).toMatchObject({ name: 'ClosedError' });
});

test('a large number of requests at once is answered, each with its own', async () => {
  const store = await job.client();
  const keys = Array.from({ length: 500 }, (_unused, i) => String(i));
  await Promise.all(keys.map((key) => store.set(key, key.repeat(100))));
  const values = await Promise.all(keys.map((key) => store.get(key)));
  expect(values.map(text)).toEqual(keys.map((key) => key.repeat(100)));
});

test('the token shows in no inspection of what a user holds', async () => {
  const server = await job.store(1);
  const connection = await job.connect(server, { rank: 0, worldSize: 1 });
  expect(inspect([server, connection, new StoreClient(connection, 1)], { depth: 10, showHidden: true })).not.toContain(
    TOKEN,
  );
});
