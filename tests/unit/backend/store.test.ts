/** The store's keys and values, and what its server withstands. */
import { once } from 'node:events';
import { connect as connectHttp2, type Settings } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { Client, credentials, type ClientDuplexStream } from '@grpc/grpc-js';
import fc from 'fast-check';
import { createHello, encodeHandshake } from '../../../src/backend/grpc/handshake';
import { storeCodec } from '../../../src/backend/grpc/proto';
import { startStore } from '../../../src/backend/grpc/store-server';
import { DEFAULT_STORE_LIMITS, StoreTable } from '../../../src/backend/store-table';
import { failureOf } from './mock-worlds';
import { StoreJob, TOKEN } from './store-jobs';

const text = (value: Uint8Array | undefined): string | undefined =>
  value === undefined ? undefined : Buffer.from(value).toString();

describe('the table', () => {
  test('set overwrites, delete tells whether there was something', () => {
    const table = new StoreTable();
    table.set('k', Buffer.from('1'));
    table.set('k', Buffer.from('2'));
    expect(text(table.get('k'))).toBe('2');
    expect([table.delete('k'), table.delete('k')]).toEqual([true, false]);
    expect(table.get('k')).toBeUndefined();
  });

  test('add counts from 0, takes negative amounts and decimal text that was set', () => {
    const table = new StoreTable();
    expect([table.add('n', 5), table.add('n', -7)]).toEqual([5, -2]);
    table.set('m', Buffer.from('5'));
    expect(table.add('m', 2)).toBe(7);
    expect(text(table.get('m'))).toBe('7');
  });

  test.each(['x', '', '1.5', '0x10', ' 1', '99999999999999999999'])('add to %j throws and changes nothing', (value) => {
    const table = new StoreTable();
    table.set('k', Buffer.from(value));
    expect(() => table.add('k', 1)).toThrow(/"k" holds .* which is not a whole number/);
    expect(text(table.get('k'))).toBe(value);
  });

  test('a sum beyond the exact whole numbers throws', () => {
    const table = new StoreTable();
    table.add('n', Number.MAX_SAFE_INTEGER);
    expect(() => table.add('n', 1)).toThrow(/range of exact whole numbers/);
    expect(table.add('n', 0)).toBe(Number.MAX_SAFE_INTEGER);
  });

  test('compareAndSet: absent keys match only an expectation of nothing, and are not created otherwise', () => {
    const table = new StoreTable();
    const compare = (expected: string | undefined, desired: string): [boolean, string | undefined] => {
      const { isSet, value } = table.compareAndSet(
        'k',
        expected === undefined ? undefined : Buffer.from(expected),
        Buffer.from(desired),
      );
      return [isSet, text(value)];
    };
    expect(compare('old', 'new')).toEqual([false, undefined]);
    expect(compare('', 'new')).toEqual([false, undefined]);
    expect(table.count('')).toBe(0);
    expect(compare(undefined, 'one')).toEqual([true, 'one']);
    expect(compare(undefined, 'two')).toEqual([false, 'one']);
    expect(compare('other', 'two')).toEqual([false, 'one']);
    expect(compare('one', 'two')).toEqual([true, 'two']);
  });

  test('who waits for several keys is told once, when all are there', () => {
    const table = new StoreTable();
    const told: string[] = [];
    table.whenPresent(['a', 'b'], () => told.push('both'));
    const giveUp = table.whenPresent(['b'], () => told.push('never'));
    giveUp();
    table.set('b', Buffer.alloc(0));
    table.delete('b');
    table.set('a', Buffer.alloc(0));
    expect(told).toEqual([]);
    table.set('b', Buffer.alloc(0));
    table.set('b', Buffer.alloc(0));
    expect(told).toEqual(['both']);
    table.whenPresent([], () => told.push('nothing to wait for'));
    expect(told).toEqual(['both', 'nothing to wait for']);
  });

  test('keys, values, their number and their total size are limited, and a refused set changes nothing', () => {
    const table = new StoreTable({ keyBytes: 3, valueBytes: 10, keys: 2, totalBytes: 20 });
    const bytes = (count: number): Buffer => Buffer.alloc(count);
    expect(() => table.set('long', bytes(0))).toThrow(/key of 4 bytes; at most 3/);
    expect(() => table.set('k', bytes(11))).toThrow(/11 bytes; at most 10/);
    table.set('k', bytes(10));
    expect(() => table.set('l', bytes(9))).toThrow(/would hold 21 bytes; at most 20/);
    table.set('l', bytes(8));
    expect(() => table.set('m', bytes(0))).toThrow(/holds 2 keys/);
    table.set('k', bytes(0)); // gives its room back
    table.set('l', bytes(10));
    expect(table.count('')).toBe(2);
  });

  test('its size never drifts: what was deleted can be stored again', () => {
    const operation = fc.tuple(fc.constantFrom('a', 'bb', 'ccc'), fc.option(fc.nat(9), { nil: undefined }));
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 60 }), (operations) => {
        const table = new StoreTable({ ...DEFAULT_STORE_LIMITS, totalBytes: 40 });
        for (const [key, size] of operations) {
          if (size === undefined) table.delete(key);
          else table.set(key, Buffer.alloc(size)); // at most 6 + 27 bytes in all
        }
        for (const key of ['a', 'bb', 'ccc']) table.delete(key);
        table.set('k', Buffer.alloc(39));
        expect(() => table.set('l', Buffer.alloc(0))).toThrow(/would hold 41 bytes/);
      }),
      { seed: 3, numRuns: 100 },
    );
  });
});

describe('the server', () => {
  let job: StoreJob;
  const clients: Client[] = [];
  beforeEach(() => void (job = new StoreJob()));
  afterEach(async () => {
    for (const client of clients.splice(0)) client.close();
    await job.close();
  });

  /** A gRPC stream to the store, below our own client. */
  function open(port: number, path = storeCodec().path): ClientDuplexStream<Buffer, Buffer> {
    const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure(), {
      'grpc.use_local_subchannel_pool': 1,
    });
    clients.push(client);
    const raw = (bytes: Buffer): Buffer => bytes;
    const stream = client.makeBidiStreamRequest(path, raw, raw);
    stream.on('error', () => undefined);
    return stream;
  }

  /** What the store says before it ends the stream. */
  function answers(stream: ClientDuplexStream<Buffer, Buffer>): Promise<string> {
    return new Promise((resolve) => {
      const said: string[] = [];
      stream.on('data', (bytes: Buffer) => {
        const message = storeCodec().decodeServerMessage(bytes);
        said.push('handshake' in message ? Buffer.from(message.handshake).toString() : JSON.stringify(message));
      });
      stream.on('status', () => resolve(said.join('\n')));
    });
  }

  const hello = (): Uint8Array =>
    encodeHandshake(createHello({ purpose: 'store', generation: 0, rank: 0, worldSize: 1, peerRank: null }));
  const strangers: readonly (readonly [string, () => Buffer, RegExp])[] = [
    ['garbage', () => Buffer.from([0x0a, 0xff, 0xff]), /no message of the store/],
    ['nothing at all', () => Buffer.alloc(0), /not what was to come next/],
    [
      'a request before the handshake',
      () => storeCodec().encodeClientMessage({ request: { id: 1, timeoutMs: 1, get: { key: 'k' } } }),
      /request is not what was to come next/,
    ],
    [
      'a hello of 5 KiB',
      () => storeCodec().encodeClientMessage({ handshake: Buffer.alloc(5 * 1024) }),
      /at most 4096 are read/,
    ],
    ['a hello that is not JSON', () => storeCodec().encodeClientMessage({ handshake: Buffer.from('{') }), /not JSON/],
  ];

  test.each(strangers)('refuses %s with a reason, logs it once, and goes on', async (_what, bytes, reason) => {
    const server = await job.store(1);
    for (let attempt = 0; attempt < 3; attempt++) {
      const stream = open(server.port);
      const said = answers(stream);
      stream.write(bytes());
      expect(await said).toMatch(reason);
    }
    expect(job.lines.filter((line) => reason.test(line))).toHaveLength(1);
    await job.connect(server, { rank: 0, worldSize: 1 });
  });

  test('without the token the handshake ends at the proof', async () => {
    const server = await job.store(1);
    const stream = open(server.port);
    const said = answers(stream);
    stream.write(storeCodec().encodeClientMessage({ handshake: hello() }));
    const proof = encodeHandshake({ type: 'proof', proof: 'A'.repeat(43) });
    stream.write(storeCodec().encodeClientMessage({ handshake: proof }));
    expect(await said).toMatch(/do not hold the same job token/);
    expect(job.lines.join('\n')).toMatch(/refused a connection from 127.0.0.1: .*token/);
    expect(job.lines.join('\n')).not.toContain(TOKEN);
  });

  test('an unknown call, bytes that are not HTTP/2, and a connection that says nothing do no harm', async () => {
    const server = await job.store(1);
    await answers(open(server.port, '/lockstep.v1.Store/Other'));
    const sockets = ['GET / HTTP/1.1\r\n\r\n', '\0'.repeat(64 * 1024), ''].map((bytes) => {
      const socket = connect(server.port, '127.0.0.1', () => socket.write(bytes));
      return socket.on('error', () => undefined);
    });
    await job.connect(server, { rank: 0, worldSize: 1 });
    for (const socket of sockets) socket.destroy();
  });

  test('a connection that proves nothing in time is ended, whether it speaks HTTP/2 or not', async () => {
    const server = await job.store(1, { handshakeTimeoutMs: 100 });
    const proven = await job.connect(server, { rank: 0, worldSize: 1 });
    const silent = connect(server.port, '127.0.0.1').on('error', () => undefined);
    const ended = new Promise((resolve) => silent.resume().once('close', resolve));
    const stream = open(server.port);
    const said = answers(stream);
    stream.write(storeCodec().encodeClientMessage({ handshake: hello() }));
    expect(await said).not.toMatch(/accepted/);
    await ended;
    expect(proven.end).toBeUndefined();
  });

  test('strangers that sit and wait keep no rank out, and are counted no further than the limit', async () => {
    const server = await job.store(1, { maxConnections: 3 });
    const idle = Array.from({ length: 20 }, () =>
      connect(server.port, '127.0.0.1')
        .on('error', () => undefined)
        .resume(),
    );
    await Promise.all(idle.map((socket) => new Promise((resolve) => socket.once('connect', resolve))));
    await job.connect(server, { rank: 0, worldSize: 1 }, { timeoutMs: 3000 });
    const isOpen = (socket: Socket): boolean => socket.readyState === 'open';
    for (let turn = 0; turn < 100 && idle.filter(isOpen).length > 3; turn++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    expect(idle.filter(isOpen).length).toBeLessThanOrEqual(3);
    for (const socket of idle) socket.destroy();
  });

  test('a connection has one stream, so that a stranger has room for one message', async () => {
    const { port } = await job.store(1);
    const session = connectHttp2(`http://127.0.0.1:${port}`);
    const [settings] = (await once(session, 'remoteSettings')) as [Settings];
    expect(settings.maxConcurrentStreams).toBe(1);
    session.destroy();
  });

  test('a port that is taken is named, with what to do', async () => {
    const { port } = await job.store(1);
    const error = await failureOf(startStore({ host: '127.0.0.1', port, worldSize: 1 }));
    expect(error).toMatchObject({ name: 'BackendUnavailableError' });
    expect(error.message).toMatch(
      new RegExp(`cannot listen at 127.0.0.1:${port}.*in use.*another rank 0.*RANK=0.*another MASTER_PORT`, 'i'),
    );
  });

  test('an address that other machines reach needs a token', async () => {
    const error = await failureOf(startStore({ host: '0.0.0.0', port: 0, worldSize: 1 }));
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    expect(error.message).toMatch(/can be reached by other machines.*LOCKSTEP_JOB_TOKEN.*tls/);
  });

  test('the port is free as soon as close() settles', async () => {
    const first = await job.store(1);
    await job.connect(first, { rank: 0, worldSize: 1 });
    await first.close();
    await first.close();
    const second = await job.store(1, { port: first.port });
    expect(second.port).toBe(first.port);
  });
});
