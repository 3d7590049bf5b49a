/** The store over real connections; what every world's store does is in ../process-group/store-suite.ts. */
import { inspect } from 'node:util';
import { failureOf } from './mock-worlds';
import { StoreJob, TOKEN, storeOver } from './store-jobs';
import { StoreClient } from '../../../src/backend/grpc/store-client';
import type { StoreConnection } from '../../../src/backend/grpc/store-connection';
import { MAX_WAITS_PER_RANK } from '../../../src/backend/store-table';
import { CollectiveTimeoutError } from '../../../src/core/errors';

const text = (value: Uint8Array | undefined): string | undefined =>
  value === undefined ? undefined : Buffer.from(value).toString();

let job: StoreJob;
beforeEach(() => void (job = new StoreJob()));
afterEach(() => job.close());

test("the keys of users' programs stand apart from all others, and those of one start of the job from another's", async () => {
  const server = await job.store(1);
  const connection = await job.connect(server, { rank: 0, worldSize: 1 });
  const store = storeOver(connection);
  await connection.request('set', { set: { key: 'k', value: Buffer.from('not the user') } }, 1000);
  expect([await store.numKeys(), await store.delete('k')]).toEqual([0, false]);
  await store.set('k', 'ours');
  const later = new StoreClient(connection, { rank: 0, generation: 1, timeoutMs: 1000 });
  expect([await store.numKeys(), await later.numKeys('')]).toEqual([1, 0]);
  const stored = await connection.request('get', { get: { key: 'user/0/k' } }, 1000);
  expect(text('value' in stored ? stored.value.value : undefined)).toBe('ours');
});

test('after the group of all ranks has failed a wait still finds what is there, and waits for nothing', async () => {
  const connection = await job.connect(await job.store(1), { rank: 0, worldSize: 1 });
  const client = new StoreClient(connection, { rank: 0, generation: 0, timeoutMs: 60_000 });
  await client.set('there', Buffer.from('1'));
  const waiting = failureOf(client.get('k'));
  client.endWaits(new Error('the reason'), (op) => new Error(`${op} ended`));
  expect((await waiting).message).toBe('store.get ended');
  expect(text(await client.get('there'))).toBe('1');
  const error = await failureOf(client.wait(['there', 'user/7/k']));
  expect(error).toMatchObject({ name: 'ClosedError', cause: { message: 'the reason' } });
  expect(error.message).toMatch(/: no value for "user\/7\/k", and .*first failure: the reason/);
  const many = await failureOf(client.wait(Array.from({ length: 1000 }, (_unused, i) => `k${i}`)));
  expect(many.message).toMatch(/: no value for "k0", "k1", .*"k7" and 992 more, and the group/);
});

test('a store that is silent is told apart from a key that is missing, after the failure of the group too', async () => {
  const silence = new CollectiveTimeoutError('the store did not answer', { ranks: [0] });
  const connection = { request: () => Promise.reject(silence) } as unknown as StoreConnection;
  const client = new StoreClient(connection, { rank: 1, generation: 0, timeoutMs: 1000 });
  client.endWaits(new Error('the reason'), (op) => new Error(op));
  expect(await failureOf(client.get('k'))).toBe(silence);
});

test('close() does not wait for ever for a store that does not answer, and says which calls had no answer', async () => {
  const connection = { request: () => new Promise(() => undefined) } as unknown as StoreConnection;
  const client = new StoreClient(connection, { rank: 1, generation: 0, timeoutMs: 60_000 });
  const setting = failureOf(client.set('k', Buffer.from('v')));
  await client.close();
  expect((await setting).message).toMatch(/^store.set on rank 1: this rank has closed its world/);
});

test('a wait that is refused is answered once, and holds no place', async () => {
  const connection = await job.connect(await job.store(1, { limits: { keyBytes: 3 } }), { rank: 0, worldSize: 1 });
  const ask = (): Promise<Error> => failureOf(connection.request('get', { get: { key: 'long' } }, 60_000));
  const errors = await Promise.all(Array.from({ length: MAX_WAITS_PER_RANK + 1 }, ask));
  for (const error of errors) expect(error.message).toMatch(/a key of 4 bytes; at most 3/);
});

test('what stands before the keys of users counts towards no limit', async () => {
  const store = await job.client({ limits: { keyBytes: 3, totalBytes: 10 } });
  await store.set('abc', '1234567');
  expect((await failureOf(store.set('abc', '12345678'))).message).toMatch(/would hold 11 bytes; at most 10/);
});

test('a value beyond the limit fails for its caller alone', async () => {
  const store = await job.client({ limits: { valueBytes: 100 } });
  expect((await failureOf(store.set('k', 'x'.repeat(101)))).message).toMatch(/101 bytes; at most 100/);
  await store.set('k', 'x'.repeat(100));
});

test('a store that is gone fails what waits and what comes later, and names rank 0', async () => {
  const server = await job.store(1);
  const connection = await job.connect(server, { rank: 0, worldSize: 1 });
  const store = storeOver(connection, 0, 60_000);
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
  const store = storeOver(connection, 0, 60_000);
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
  expect(inspect([server, connection, storeOver(connection)], { depth: 10, showHidden: true })).not.toContain(TOKEN);
});
