/** The second half of the rendezvous: no rank starts before all are connected, and all agree on what kept them from it. */
import { join, startTogether } from '../../../src/backend/grpc/rendezvous';
import type { StoreConnection } from '../../../src/backend/grpc/store-connection';
import type { StoreServer } from '../../../src/backend/grpc/store-server';
import { PeerLostError, asError } from '../../../src/core/errors';
import { failureOf } from './mock-worlds';
import { addressOf, StoreJob } from './store-jobs';

let job: StoreJob;
beforeEach(() => void (job = new StoreJob()));
afterEach(() => job.close());

const lost = new PeerLostError('connect: rank 1 is lost: killed.', { ranks: [1] });
const until = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(asError(signal.reason))));

async function joined(size: number): Promise<{ server: StoreServer; connections: StoreConnection[] }> {
  const server = await job.store(size);
  const all = Array.from({ length: size }, (_unused, rank) => rank);
  const connections = await Promise.all(all.map((rank) => job.connect(server, { rank, worldSize: size })));
  await Promise.all(connections.map((connection, rank) => join(connection, addressOf(rank), 5000)));
  return { server, connections };
}

test('nobody starts before everybody is connected', async () => {
  const { connections } = await joined(3);
  const started: number[] = [];
  const starts = connections.slice(0, 2).map(async (connection, rank) => {
    started.push(await startTogether(connection, async () => rank, 5000));
  });
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(started).toEqual([]);
  const last = await startTogether(connections[2] as StoreConnection, async () => 2, 5000);
  await Promise.all(starts);
  expect([...started.sort(), last]).toEqual([0, 1, 2]);
});

test('who gives up is not blamed: all get its reason, also one that has seen it go and blames it', async () => {
  const { server, connections } = await joined(4);
  const [zero, , two, three] = connections as [StoreConnection, StoreConnection, StoreConnection, StoreConnection];
  const others = [
    failureOf(startTogether(three, until, 5000)),
    failureOf(startTogether(zero, () => Promise.reject(lost), 5000)),
  ];
  const first = await others[1];
  others.push(
    failureOf(startTogether(two, () => Promise.reject(new PeerLostError('rank 0 is lost', { ranks: [0] })), 5000)),
  );
  for (const error of [first, ...(await Promise.all(others))]) {
    expect(error).toMatchObject({ name: 'PeerLostError', message: lost.message, context: { ranks: [1] } });
  }
  await server.close();
});

test('the reason reaches those that wait before the store closes', async () => {
  const { server, connections } = await joined(3);
  const waiting = connections.slice(1).map((connection) => failureOf(startTogether(connection, until, 5000)));
  await failureOf(startTogether(connections[0] as StoreConnection, () => Promise.reject(lost), 5000));
  await server.close();
  for (const error of await Promise.all(waiting)) expect(error).toMatchObject({ context: { ranks: [1] } });
});

test('a rank whose process ends before all are connected is named to all that wait', async () => {
  const { connections } = await joined(3);
  const waiting = connections.slice(0, 2).map((connection) => failureOf(startTogether(connection, until, 5000)));
  await connections[2]?.close();
  for (const error of await Promise.all(waiting)) {
    expect(error).toMatchObject({ name: 'PeerLostError', context: { ranks: [2] } });
    expect(error.message).toContain('before all 3 ranks were connected');
  }
});

test('a rank that does not get ready is named at the deadline', async () => {
  const { connections } = await joined(2);
  const error = await failureOf(startTogether(connections[0] as StoreConnection, async () => 0, 100));
  expect(error).toMatchObject({ name: 'CollectiveTimeoutError', context: { ranks: [1] } });
  expect(error.message).toMatch(/rank 1 of 2 did not connect to all others within the 100 ms that rank 0 waited/);
});

test('a process of another world size cannot stop ranks that have all come', async () => {
  const { server, connections } = await joined(2);
  const first = startTogether(connections[0] as StoreConnection, async () => 0, 5000);
  await failureOf(job.connect(server, { rank: 2, worldSize: 3 }));
  await startTogether(connections[1] as StoreConnection, async () => 1, 5000);
  expect(await first).toBe(0);
});

test('a store whose job has failed stays until the ranks that come late know why', async () => {
  const server = await job.store(4);
  const come = (connection: StoreConnection, rank: number): Promise<Error> =>
    failureOf(join(connection, addressOf(rank), 5000));
  const zero = await job.connect(server, { rank: 0, worldSize: 4 });
  const waiting = come(zero, 0);
  const one = await job.connect(server, { rank: 1, worldSize: 4 });
  void come(one, 1);
  await one.close();
  expect(await waiting).toMatchObject({ context: { ranks: [1] } });
  const closed = server.informAll(5000).then(() => server.close());
  for (const rank of [2, 3]) {
    const late = await job.connect(server, { rank, worldSize: 4 });
    expect(await come(late, rank)).toMatchObject({ name: 'PeerLostError', context: { ranks: [1] } });
  }
  await closed;
}, 4000);
