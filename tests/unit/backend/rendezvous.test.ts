/** How ranks meet at the store, and what each is told when they cannot. */
import { createServer, type Server, type Socket } from 'node:net';
import { networkInterfaces } from 'node:os';
import type { PeerAddress } from '../../../src/backend/grpc/endpoint';
import { hostPort, resolveHost } from '../../../src/backend/grpc/host-address';
import { localAddressTowards } from '../../../src/backend/grpc/local-address';
import { Membership } from '../../../src/backend/grpc/membership';
import { connectStore, join } from '../../../src/backend/grpc/rendezvous';
import type { StoreConnection } from '../../../src/backend/grpc/store-connection';
import type { StoreServer } from '../../../src/backend/grpc/store-server';
import { Deadline } from '../../../src/core/deadline';
import { CertificateAuthority } from '../../helpers/certificates';
import { failureOf } from './mock-worlds';
import { addressOf, StoreJob, storeOver, TOKEN } from './store-jobs';

let job: StoreJob;
beforeEach(() => void (job = new StoreJob()));
afterEach(() => job.close());

async function ranks(server: StoreServer, worldSize: number, which: readonly number[]): Promise<StoreConnection[]> {
  return Promise.all(which.map((rank) => job.connect(server, { rank, worldSize })));
}

const come = (connection: StoreConnection, rank: number, timeoutMs = 5000): Promise<readonly PeerAddress[]> =>
  join(connection, addressOf(rank), timeoutMs);

/** The store has read what this connection sent so far: it answers in order. */
async function arrived(connection: StoreConnection): Promise<void> {
  await storeOver(connection).numKeys();
}

test.each([1, 2, 7])('each of %i ranks gets the addresses of all, by rank', async (size) => {
  const all = Array.from({ length: size }, (_unused, rank) => rank);
  const server = await job.store(size);
  const connections = await ranks(server, size, all);
  const order = [...all].reverse(); // whatever the order in which they come
  const lists = await Promise.all(order.map((rank) => come(connections[rank] as StoreConnection, rank)));
  for (const list of lists) expect(list).toEqual(all.map(addressOf));
});

test('of two processes with one rank the second is refused and told; the first goes on', async () => {
  const server = await job.store(2);
  const [zero, one, second] = (await ranks(server, 2, [0, 1, 1])) as [
    StoreConnection,
    StoreConnection,
    StoreConnection,
  ];
  const first = come(one, 1);
  await arrived(one);
  const early = await failureOf(come(second, 1));
  expect(early).toMatchObject({ name: 'InvalidArgumentError', context: { ranks: [1] } });
  expect(early.message).toMatch(/rank 1 of this job is taken by another process, which goes on.*RANK=1/);
  await second.close();
  expect(await come(zero, 0)).toEqual(await first);
  const late = (await ranks(server, 2, [0]))[0] as StoreConnection;
  expect((await failureOf(come(late, 0))).message).toMatch(/rank 0 of this job is taken/);
});

test('ranks that never come are listed, to all that wait and to who comes too late', async () => {
  const server = await job.store(4);
  const [zero, two, three] = (await ranks(server, 4, [0, 2, 3])) as [StoreConnection, StoreConnection, StoreConnection];
  const waiting = [failureOf(come(zero, 0, 200)), failureOf(come(two, 2, 60_000))];
  for (const error of [...(await Promise.all(waiting)), await failureOf(come(three, 3))]) {
    expect(error).toMatchObject({ name: 'CollectiveTimeoutError', context: { op: 'join', ranks: [1, 3] } });
    expect(error.message).toMatch(/ranks 1 and 3 of 4 did not join within the 200 ms that rank 0 waited/);
  }
});

test('another world size fails all, at once, and names both', async () => {
  const server = await job.store(3);
  const [zero] = (await ranks(server, 3, [0])) as [StoreConnection];
  const waiting = failureOf(come(zero, 0, 60_000));
  const refused = await failureOf(job.connect(server, { rank: 1, worldSize: 4 }));
  const told = await waiting;
  expect(told.context).toMatchObject({ op: 'join', ranks: [1] });
  for (const error of [refused, told]) {
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    expect(error.message).toMatch(/rank 1 was started for a world of 4 ranks, this job has 3.*WORLD_SIZE/);
  }
});

test('another world size does not disturb a job that is complete', async () => {
  const server = await job.store(1);
  const [zero] = (await ranks(server, 1, [0])) as [StoreConnection];
  await come(zero, 0);
  await failureOf(job.connect(server, { rank: 1, worldSize: 4 }));
  expect(zero.end).toBeUndefined();
});

const strangers = [
  ['a rank out of range', { rank: 2 }, /rank 2 is outside a world of 2 ranks. Set RANK to 0 to 1/],
  ['an old generation', { generation: 4 }, /earlier start of the job \(generation 4, this is generation 5\)/],
  ['a later generation', { generation: 6 }, /later start of the job \(generation 6, this is generation 5\)/],
  ['a wrong token', { token: 'wrong' }, /do not hold the same job token/],
  ['no token', { token: undefined }, /do not hold the same job token/],
] as const;

test.each(strangers)('%s is refused at once with the reason; the others go on', async (_what, claims, reason) => {
  const server = await job.store(2, { generation: 5 });
  const own = { worldSize: 2, generation: 5 };
  const zero = await job.connect(server, { rank: 0, ...own });
  const waiting = come(zero, 0);
  const error = await failureOf(job.connect(server, { rank: 1, ...own, ...claims }));
  expect(error).toMatchObject({ name: 'InvalidArgumentError', code: 'LOCKSTEP_INVALID_ARGUMENT' });
  expect(error.message).toMatch(reason);
  expect(error.message).toMatch(/cannot join the job whose store is at 127.0.0.1:\d+/);
  const one = await job.connect(server, { rank: 1, ...own });
  expect(await come(one, 1)).toEqual(await waiting);
  expect(job.lines.join('\n')).toMatch(reason);
  expect(job.lines.join('\n')).not.toContain(TOKEN);
});

test('a rank that leaves before all have come fails the others at once', async () => {
  const server = await job.store(3);
  const [zero, one] = (await ranks(server, 3, [0, 1])) as [StoreConnection, StoreConnection];
  const waiting = failureOf(come(zero, 0, 60_000));
  await arrived(zero);
  const leaving = failureOf(come(one, 1, 60_000));
  await one.close();
  expect(await waiting).toMatchObject({ name: 'PeerLostError', context: { ranks: [1] } });
  expect((await waiting).message).toMatch(/rank 1 closed its world before all 3 ranks had joined \(missing: rank 2\)/);
  expect(await leaving).toMatchObject({ name: 'ClosedError' });
});

test('a store that goes away while ranks wait is a lost rank 0', async () => {
  const server = await job.store(2);
  const [one] = (await ranks(server, 2, [1])) as [StoreConnection];
  const waiting = failureOf(come(one, 1, 60_000));
  await server.close();
  expect(await waiting).toMatchObject({ name: 'PeerLostError', context: { ranks: [0] } });
});

test('all get the last answer even if the store closes at once', async () => {
  const server = await job.store(7);
  const all = [0, 1, 2, 3, 4, 5, 6];
  const connections = await ranks(server, 7, all);
  const joins = connections.map((connection, rank) => come(connection, rank));
  await joins[0];
  await server.close();
  expect(await Promise.all(joins)).toHaveLength(7);
});

describe('finding the store', () => {
  const identity = { rank: 1, worldSize: 2, generation: 0, token: TOKEN, tls: undefined };

  test('a rank that is there first waits for rank 0', async () => {
    const { port } = await job.store(2);
    await job.close();
    const early = job.connect({ port }, { rank: 1, worldSize: 2 });
    await new Promise((resolve) => setTimeout(resolve, 150));
    await job.store(2, { port });
    expect((await early).end).toBeUndefined();
  });

  test('nobody there: the address and the reason, at the deadline', async () => {
    const store = { host: '127.0.0.1', port: 1 };
    const error = await failureOf(connectStore(identity, store, new Deadline(200), job.logger));
    expect(error).toMatchObject({ name: 'BackendUnavailableError', context: { rank: 1, ranks: [0] } });
    expect(error.message).toMatch(
      /rank 1: nobody served the job's store at 127.0.0.1:1 within 200 ms \(.*ECONNREFUSED.*\).*rank 0.*MASTER_ADDR and MASTER_PORT/,
    );
  });

  test('a name that does not resolve: the same, with that reason', async () => {
    const lookup = (): Promise<string[]> => Promise.reject(new Error('getaddrinfo ENOTFOUND nowhere'));
    const store = { host: 'nowhere', port: 29500 };
    const error = await failureOf(connectStore(identity, store, new Deadline(150), job.logger, lookup));
    expect(error.message).toMatch(/store at nowhere:29500 within 150 ms \(getaddrinfo ENOTFOUND nowhere\)/);
  });

  test.each(['silent', 'web'])('a %s server at the address is named, at the deadline', async (kind) => {
    const sockets: Socket[] = [];
    const server = createServer((socket) => {
      sockets.push(socket.on('error', () => undefined));
      if (kind === 'web') socket.end('HTTP/1.1 400 Bad Request\r\n\r\n');
    });
    const port = await portOf(server);
    try {
      const store = { host: '127.0.0.1', port };
      const error = await failureOf(connectStore(identity, store, new Deadline(300), job.logger));
      expect(error).toMatchObject({ name: 'BackendUnavailableError' });
      expect(error.message).toContain(`127.0.0.1:${port}`);
    } finally {
      server.close();
      for (const socket of sockets) socket.destroy();
    }
  });

  test.each(['localhost', '::1', '[::1]', '127.0.0.1'])('a job meets at %s', async (host) => {
    const server = await job.store(1, { host });
    const connection = await job.connect(server, { rank: 0, worldSize: 1 }, { host });
    expect(await come(connection, 0)).toHaveLength(1);
  });

  test('localhost is served at both addresses, so ranks that resolve it differently meet', async () => {
    const server = await job.store(1, { host: 'localhost', lookup: async () => ['::1'] });
    expect([...server.addresses].sort()).toEqual([`127.0.0.1:${server.port}`, `[::1]:${server.port}`]);
    for (const host of ['127.0.0.1', '::1']) await job.connect(server, { rank: 0, worldSize: 1 }, { host });
  });

  function portOf(server: Server): Promise<number> {
    return new Promise((resolve) => {
      server.listen(0, '127.0.0.1', () => resolve((server.address() as { readonly port: number }).port));
    });
  }
});

describe('with TLS', () => {
  const authority = new CertificateAuthority('the job');

  test('ranks meet by certificates alone, by name and by address', async () => {
    const server = await job.store(1, { host: 'localhost', token: undefined, tls: authority.issue('rank 0') });
    for (const host of ['localhost', '127.0.0.1', '::1']) {
      const tls = authority.issue('rank 0');
      await job.connect(server, { rank: 0, worldSize: 1, token: undefined, tls }, { host });
    }
  });

  test('without a certificate, or with one of another authority, nobody gets in', async () => {
    const server = await job.store(1, { tls: authority.issue('rank 0') });
    const stranger = new CertificateAuthority('somebody else').issue('rank 0');
    const halfStranger = { ...stranger, ca: authority.certificate }; // trusts the store, is not trusted by it
    for (const tls of [undefined, stranger, halfStranger]) {
      const error = await failureOf(job.connect(server, { rank: 0, worldSize: 1, tls }, { timeoutMs: 300 }));
      expect(error).toMatchObject({ name: 'BackendUnavailableError' });
    }
    await job.connect(server, { rank: 0, worldSize: 1, tls: authority.issue('rank 0') });
  });
});

describe('addresses', () => {
  test('localhost never resolves to another machine', async () => {
    expect(await resolveHost('localhost', async () => ['203.0.113.9'])).toEqual(['127.0.0.1', '::1']);
    expect(await resolveHost('localhost', () => Promise.reject(new Error('no entry')))).toEqual(['127.0.0.1', '::1']);
    expect(await resolveHost('[2001:db8::1]')).toEqual(['2001:db8::1']);
  });

  test('a rank listens where the way to the store leaves this machine', async () => {
    expect(await localAddressTowards('127.0.0.1', 29500)).toBe('127.0.0.1');
    expect(await localAddressTowards('::1', 29500)).toBe('::1');
    const own = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
    const external = own.find(({ internal, family }) => !internal && family === 'IPv4');
    if (external === undefined) return; // a machine without a network
    expect(await localAddressTowards(external.address, 29500)).toBe(external.address);
  });

  test('IPv6 stands in brackets beside a port', () => {
    expect([hostPort('::1', 1), hostPort('a', 1)]).toEqual(['[::1]:1', 'a:1']);
  });
});

test('what was turned away is told to those whose time is over', () => {
  const membership = new Membership(2);
  const outcomes: unknown[] = [];
  membership.join(addressOf(0), (outcome) => outcomes.push(outcome));
  membership.noteRefusal('the two processes do not hold the same job token. Set the same for all ranks.');
  membership.expire(0, 100);
  membership.expire(0, 100);
  expect(outcomes).toHaveLength(1);
  expect((outcomes[0] as Error).message).toMatch(
    /rank 1 of 2 did not join.*Turned away so far: the two processes .* for all ranks\. Check/,
  );
});
