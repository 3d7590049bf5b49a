/** The store of mock worlds and of the backend 'grpc', by one suite; and what only one of them can show. */
import { MockBackend } from '../../../src/backend/registry';
import type { MockOptions } from '../../../src/backend/mock/mock-options';
import { World } from '../../../src/process-group/world';
import { freePort } from '../../helpers/free-port';
import { describeStore, textOf, type RunRanks } from './store-suite';
import { rejectionOf } from './worlds';

const LIMIT_MS = 10_000;

function onMock(options: MockOptions): RunRanks {
  return async (size, body, { timeoutMs = LIMIT_MS } = {}) => {
    const backends = MockBackend.createWorld(size, { ...options, timeoutMs });
    const worlds = backends.map((backend) => World.fromBackend(backend));
    const runs = backends.map((backend, rank) => backend.run(() => body(worlds[rank] as World)));
    return allOf(runs, worlds);
  };
}

const onGrpc: RunRanks = async (size, body, { timeoutMs = LIMIT_MS } = {}) => {
  const place = { backend: 'grpc', worldSize: size, masterAddr: '127.0.0.1', masterPort: await freePort() };
  const ranks = Array.from({ length: size }, (_unused, rank) => rank);
  const options = { ...place, timeoutMs, joinTimeoutMs: LIMIT_MS, generation: 3 };
  const worlds = await Promise.all(ranks.map((rank) => World.init({ ...options, rank })));
  return allOf(worlds.map(body), worlds);
};

/** All results, or the first failure, once every rank has ended and the worlds are closed. */
async function allOf<T>(runs: readonly Promise<T>[], worlds: readonly World[]): Promise<T[]> {
  await Promise.allSettled(runs);
  await Promise.all(worlds.map((world) => world.close()));
  return Promise.all(runs);
}

describeStore('a mock world', onMock({}));
describeStore('a mock world with a random schedule', onMock({ schedule: 'random', seed: 11 }));
describeStore('a world of the backend grpc', onGrpc);

describe('a world of one', () => {
  const made: readonly (readonly [string, () => Promise<World>])[] = [
    ['World.init() alone', () => World.init()],
    ['World.mock()', () => Promise.resolve(World.mock())],
  ];

  test.each(made)('%s has a store, whose keys may come from anywhere in the program', async (_what, make) => {
    const world = await make();
    setTimeout(() => void world.store.set('k', 'late'), 120); // after the second look of the mock
    expect(textOf(await world.store.get('k'))).toBe('late');
    await world.close();
    expect(await rejectionOf(world.store.get('k'))).toMatchObject({ code: 'LOCKSTEP_CLOSED' });
  });

  test('the worlds of World.createMock share a store, and worlds apart do not', async () => {
    const [a, b] = World.createMock(2) as [World, World];
    const other = World.mock();
    await a.store.set('k', 'v');
    expect(textOf(await b.store.get('k'))).toBe('v');
    expect(await other.store.numKeys()).toBe(0);
    await Promise.all([a, b, other].map((world) => world.close()));
  });
});

test('a backend without a store is named by the error', async () => {
  const backend = MockBackend.single();
  const world = World.fromBackend(new Proxy(backend, { get: (target, key) => withoutStore(target, key) }));
  expect(() => world.store).toThrow(/the backend 'mock' has no store; .*broadcastObject/);
  expect(() => world.store).toThrow(expect.objectContaining({ code: 'LOCKSTEP_UNSUPPORTED' }) as Error);
  await world.close();
});

function withoutStore(backend: MockBackend, key: string | symbol): unknown {
  const value: unknown = key === 'store' ? undefined : Reflect.get(backend, key, backend);
  return typeof value === 'function' ? (value.bind(backend) as unknown) : value;
}
