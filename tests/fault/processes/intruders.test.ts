/** Strangers on the ports and sockets of a running job: refused, logged once, and the job does not notice. */
import { randomBytes } from 'node:crypto';
import { connect, type NetConnectOpts, type Socket } from 'node:net';
import { canSeeSockets, listeningOf } from '../../helpers/listening';
import { closeAll, Jobs, PLANES, type Rank } from './job';
import { testWhere } from '../../helpers/test-where';

const jobs = new Jobs();
afterAll(() => jobs.close());

const HTTP2_PREFACE = 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n';
const HELLO = JSON.stringify({
  type: 'hello',
  protocol: 'lockstep',
  version: 1,
  purpose: 'link',
  generation: 0,
  rank: 1,
  worldSize: 2,
  peerRank: 0,
  nonce: 'A'.repeat(43),
});

/** A message with its length before it, as on the socket plane. */
function withLength(text: string): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return Buffer.concat([length, Buffer.from(text)]);
}

const INTRUSIONS: Readonly<Record<string, Buffer | undefined>> = {
  'a port scan': Buffer.alloc(0),
  'a connection that says nothing': undefined,
  'random bytes': randomBytes(100_000),
  'a web browser': Buffer.from('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'),
  'HTTP/2 and then random bytes': Buffer.concat([Buffer.from(HTTP2_PREFACE), randomBytes(50_000)]),
  'an oversized hello': withLength(' '.repeat(1_000_000)),
  'a length of 4 GiB': Buffer.alloc(8, 0xff),
  'a hello without a proof': Buffer.concat([withLength(HELLO), randomBytes(10_000)]),
};

/** Connect, say it, and wait for the other side to hang up or for a while. */
function intrude(target: NetConnectOpts, bytes: Buffer | undefined): Promise<Socket> {
  return new Promise((resolve) => {
    const socket = connect(target);
    const done = (): void => resolve(socket);
    socket.on('error', done).on('close', done);
    socket.on('connect', () => {
      if (bytes?.length === 0) socket.destroy();
      else if (bytes !== undefined) socket.write(bytes);
      setTimeout(done, 200);
    });
    socket.resume();
  });
}

function targetsOf(rank: Rank): NetConnectOpts[] {
  const { tcpPorts, unixPaths } = listeningOf(rank.pid);
  const hosts = [...new Set(tcpPorts)].map((port) => ({ port, host: '127.0.0.1' }));
  return [...hosts, ...unixPaths.filter((path) => path.startsWith('/')).map((path) => ({ path }))];
}

/** Everything that strangers try, three times at each place. */
function intrudeEverywhere(ranks: readonly Rank[]): Promise<Socket[]> {
  const targets = ranks.flatMap(targetsOf);
  expect(targets.length).toBeGreaterThanOrEqual(1);
  const attempts = Object.values(INTRUSIONS).flatMap((bytes) => [bytes, bytes, bytes]);
  return Promise.all(attempts.flatMap((bytes) => targets.map((target) => intrude(target, bytes))));
}

/** A line a kind of attempt and place at most, however often it was tried, and no secret in it. */
function checkLog(ranks: readonly Rank[], token: string | undefined): void {
  const outputs = ranks.map(({ output }) => output);
  for (const output of outputs) {
    expect(output.split('\n').length).toBeLessThanOrEqual(2 * Object.keys(INTRUSIONS).length);
    expect(output).not.toContain(token);
  }
  expect(outputs.join('')).toMatch(/refused/);
}

const testWhereVisible = testWhere(canSeeSockets, 'strangers at a running job', 'a /proc that lists sockets');

testWhereVisible.each(PLANES)(
  'a job over %s works on, undisturbed by strangers',
  async (dataPlane) => {
    const ranks = [jobs.own({}), jobs.own({})];
    const place = { ...(await jobs.place(2)), dataPlane };
    await Promise.all(ranks.map((rank, index) => rank.call('open', { ...place, rank: index })));
    const work = ranks.map((rank) => rank.call('loop', { elements: 100_000, rounds: 150 }));
    const sockets = await intrudeEverywhere(ranks);
    const ends = await Promise.all(work);
    expect(ends.map(({ error, rounds }) => [error, rounds])).toEqual(ranks.map(() => [null, 150]));
    await closeAll(ranks);
    for (const socket of sockets) socket.destroy();
    checkLog(ranks, place.token);
  },
  60_000,
);

testWhereVisible.each(PLANES)(
  'a job over %s forms, undisturbed by strangers at the store and at the data planes',
  async (dataPlane) => {
    const ranks = [jobs.own({}), jobs.own({}), jobs.own({})];
    const place = { ...(await jobs.place(3)), dataPlane };
    const early = ranks.slice(0, 2);
    const joining = early.map((rank, index) => rank.call('open', { ...place, rank: index }));
    while (early.some((rank) => targetsOf(rank).length === 0)) await new Promise((resolve) => setTimeout(resolve, 20));
    const sockets = await intrudeEverywhere(early);
    await Promise.all([...joining, (ranks[2] as Rank).call('open', { ...place, rank: 2 })]);
    const ends = await Promise.all(ranks.map((rank) => rank.call('loop', { elements: 1000, rounds: 3 })));
    expect(ends.map(({ error, rounds }) => [error, rounds])).toEqual(ranks.map(() => [null, 3]));
    await closeAll(ranks);
    for (const socket of sockets) socket.destroy();
    checkLog(ranks, place.token);
  },
  60_000,
);
