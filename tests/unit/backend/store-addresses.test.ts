/** Where rank 0, or `lockstep store`, listens: names that come late, addresses of other machines. */
import { networkInterfaces } from 'node:os';
import { connectGrpc } from '../../../src/backend/grpc/connect';
import type { Lookup } from '../../../src/backend/grpc/host-address';
import { storeAddresses, type StorePlace } from '../../../src/backend/grpc/store-addresses';
import { startStore } from '../../../src/backend/grpc/store-server';
import { Deadline } from '../../../src/core/deadline';
import type { Logger } from '../../../src/core/logger';
import { freePort } from '../../helpers/free-port';

const FOREIGN = '203.0.113.1';
const EVERY_ADDRESS = ['::', '0.0.0.0'];
const TOKEN = 'the token of this job';

let warnings: string[];
let logger: Logger;
beforeEach(() => {
  warnings = [];
  const ignore = (): void => undefined;
  logger = { debug: ignore, info: ignore, warn: (line) => void warnings.push(line), error: ignore };
});

const addresses = (host: string, more: Partial<StorePlace> = {}): Promise<readonly string[]> =>
  storeAddresses({ host, isProtected: true, mayForward: true, logger, ...more });

const resolvesTo =
  (...found: string[]): Lookup =>
  async () =>
    found;

/** Fails `times` times, as before a name is known. */
function resolvesLate(times: number, found: string): Lookup {
  let calls = 0;
  return async (host) => {
    calls += 1;
    if (calls <= times) throw new Error(`getaddrinfo ENOTFOUND ${host}`);
    return [found];
  };
}

describe('rank 0 whose address is another machine’s', () => {
  test.each([FOREIGN, 'service', '2001:db8::7'])('listens at every address, and warns once: %s', async (host) => {
    expect(await addresses(host, { lookup: resolvesTo(FOREIGN) })).toEqual(EVERY_ADDRESS);
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(new RegExp(`MASTER_ADDR '${host}' is no address of this machine .*Kubernetes.*NAT`));
  });

  test('is refused with neither token nor TLS', async () => {
    await expect(addresses(FOREIGN, { isProtected: false })).rejects.toThrow(/other machines.*LOCKSTEP_JOB_TOKEN/);
    expect(warnings).toEqual([]);
  });
});

test('addresses of this machine are listened at without a word', async () => {
  const own = Object.values(networkInterfaces()).flatMap((list) => (list ?? []).map(({ address }) => address));
  expect(own.length).toBeGreaterThan(0);
  for (const address of own) expect(await addresses(address)).toEqual([address]);
  expect(await addresses('0:0:0:0:0:0:0:1')).toEqual(['0:0:0:0:0:0:0:1']);
  expect(await addresses('rank-0', { lookup: resolvesTo('127.0.1.1'), isProtected: false })).toEqual(['127.0.1.1']);
  // Of a name that is more than this machine's, what is this machine's.
  expect(await addresses('rank-0', { lookup: resolvesTo('127.0.1.1', FOREIGN) })).toEqual(['127.0.1.1']);
  expect(await addresses('0.0.0.0')).toEqual(EVERY_ADDRESS);
  expect(await addresses('[::]')).toEqual(EVERY_ADDRESS);
  expect(warnings).toEqual([]);
});

test('a host that was named to listen at must be this machine’s', async () => {
  const error = await startStore({ host: FOREIGN, port: 0, worldSize: 1, token: TOKEN }).catch(
    (thrown: Error) => thrown,
  );
  expect(error).toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT' });
  expect((error as Error).message).toMatch(/'203\.0\.113\.1' is no address of this machine, which has .*127\.0\.0\.1/);
});

describe('a name that does not resolve yet', () => {
  test('is tried again until it does', async () => {
    const lookup = resolvesLate(3, '127.0.0.1');
    expect(await addresses('late', { lookup, deadline: new Deadline(20_000) })).toEqual(['127.0.0.1']);
  });

  test('is an error at the deadline, naming the address', async () => {
    const lookup = resolvesLate(Infinity, '');
    const error = await addresses('never', { lookup, deadline: new Deadline(120) }).catch((thrown: Error) => thrown);
    expect(error).toMatchObject({ code: 'LOCKSTEP_UNAVAILABLE', context: { rank: 0, ranks: [0] } });
    expect((error as Error).message).toMatch(
      /its address 'never' did not resolve within 120 ms \(getaddrinfo ENOTFOUND never\)\. Set MASTER_ADDR/,
    );
  });

  test('is an error at the deadline too where the resolver never answers', async () => {
    const lookup: Lookup = () => new Promise(() => undefined);
    const late = addresses('never', { lookup, deadline: new Deadline(80) });
    await expect(late).rejects.toThrow(/'never' did not resolve within 80 ms \(no answer of the resolver\)/);
    const init = { worldSize: 2, rank: 1, masterAddr: 'never', masterPort: await freePort(), token: TOKEN, logger };
    await expect(connectGrpc({ ...init, timeoutMs: 80 }, lookup)).rejects.toThrow(/80 ms.*no answer/);
  });

  test('is an error at once where nobody waits for it', async () => {
    const lookup = resolvesLate(1, '127.0.0.1');
    await expect(addresses('never', { lookup })).rejects.toThrow(/'never' does not resolve .*MASTER_ADDR/);
  });

  test('keeps no rank from joining, rank 0 neither', async () => {
    const init = { worldSize: 2, masterAddr: 'late', masterPort: await freePort(), timeoutMs: 20_000, token: TOKEN };
    const ranks = [0, 1].map((rank) => connectGrpc({ ...init, rank, logger }, resolvesLate(2 + rank, '127.0.0.1')));
    const backends = await Promise.all(ranks);
    await Promise.all(backends.map((backend) => backend.barrier()));
    await Promise.all(backends.map((backend) => backend.close()));
  });
});
