import { inspect } from 'node:util';
import { MockBackend, registerBackend } from '../../../src/backend/registry';
import type { BackendInit } from '../../../src/backend/registry';
import { Generator } from '../../../src/core/generator';
import { defaultGenerator, generatorKey, manualSeed } from '../../../src/core/random';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';
import { World } from '../../../src/process-group/world';
import type { WorldOptions } from '../../../src/process-group/world-options';
import { rejectionOf } from './worlds';

const VARIABLES = [
  'RANK',
  'WORLD_SIZE',
  'LOCAL_RANK',
  'MASTER_ADDR',
  'MASTER_PORT',
  'LOCKSTEP_BACKEND',
  'LOCKSTEP_JOB_TOKEN',
  'LOCKSTEP_JOB_TOKEN_FILE',
  'LOCKSTEP_GENERATION',
  'LOCKSTEP_STORE',
  'LOCKSTEP_CALL_SITES',
  'SLURM_PROCID',
  'SLURM_NTASKS',
  'SLURM_LOCALID',
  'OMPI_COMM_WORLD_RANK',
  'OMPI_COMM_WORLD_SIZE',
  'OMPI_COMM_WORLD_LOCAL_RANK',
];

/** What a backend was asked for. */
let asked: BackendInit | undefined;
let unregister: () => void;
const before = { ...process.env };

beforeEach(() => {
  for (const name of VARIABLES) delete process.env[name];
  asked = undefined;
  // Says what it was asked for, and connects to nobody.
  unregister = registerBackend('recording', (init) => {
    asked = init;
    return MockBackend.single();
  });
});

afterEach(() => {
  unregister();
  for (const name of VARIABLES) delete process.env[name];
  Object.assign(process.env, before);
});

async function initWith(variables: Record<string, string>, options?: WorldOptions): Promise<World> {
  Object.assign(process.env, variables);
  return World.init(options);
}

describe('World.mock and World.createMock', () => {
  test('a world of one', async () => {
    const world = World.mock();
    expect([world.rank, world.worldSize, world.localRank, world.isMain]).toEqual([0, 1, 0, true]);
    expect(world.defaultGroup).toBe(world.group);
    await world.barrier();
    expect((await world.newGroup([0])).size).toBe(1);
    expect(inspect(world)).toBe('World <rank 0 of 1, local rank 0, mock>');
    await world.close();
  });

  test('worlds of one job, by rank', async () => {
    const worlds = World.createMock(3, { checks: 'order' });
    expect(worlds.map((world) => world.rank)).toEqual([0, 1, 2]);
    expect(worlds.map((world) => world.localRank)).toEqual([0, 1, 2]);
    expect(worlds.map((world) => world.isMain)).toEqual([true, false, false]);
    const tensors = worlds.map((world) => Tensor.from([world.rank + 1]));
    await Promise.all(worlds.map((world, rank) => world.group.allReduce(tensors[rank] as Tensor)));
    expect(tensors.map((tensor) => tensor.item())).toEqual([6, 6, 6]);
    await Promise.all(worlds.map((world) => world[Symbol.asyncDispose]()));
    expect(await rejectionOf((worlds[0] as World).barrier())).toMatchObject({ name: 'ClosedError' });
  });

  test('options of the mock are checked', () => {
    expect(() => World.createMock(2, { schedul: 'random' } as never)).toThrow(/unknown key 'schedul'/);
    expect(() => World.createMock(0)).toThrow(/whole number of ranks from 1, got 0/);
  });
});

describe('World.init', () => {
  test('with nothing set is a world of one on the mock', async () => {
    const world = await World.init();
    expect([world.rank, world.worldSize, world.localRank, world.group.backend.name]).toEqual([0, 1, 0, 'mock']);
    await world.close();
  });

  test('with WORLD_SIZE=1 too, whatever address is given', async () => {
    const world = await initWith({ RANK: '0', WORLD_SIZE: '1', MASTER_ADDR: 'localhost', MASTER_PORT: '29500' });
    expect(world.group.backend.name).toBe('mock');
    await world.close();
  });

  test('with several processes is grpc, which asks where they meet', async () => {
    const error = await rejectionOf(initWith({ RANK: '1', WORLD_SIZE: '4' }));
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    expect(error.message).toMatch(/'grpc'.*MASTER_ADDR.*options.masterAddr/);
    const port = await rejectionOf(initWith({ MASTER_ADDR: 'localhost' }));
    expect(port.message).toMatch(/MASTER_PORT.*options.masterPort/);
    const mock = await rejectionOf(World.init({ backend: 'mock' }));
    expect(mock.message).toMatch(/cannot join a job of 4 processes/);
  });

  test.each([
    ['torchrun', { RANK: '5', WORLD_SIZE: '8', LOCAL_RANK: '1' }],
    ['Slurm', { SLURM_PROCID: '5', SLURM_NTASKS: '8', SLURM_LOCALID: '1' }],
    ['Open MPI', { OMPI_COMM_WORLD_RANK: '5', OMPI_COMM_WORLD_SIZE: '8', OMPI_COMM_WORLD_LOCAL_RANK: '1' }],
    ['torchrun inside Slurm', { RANK: '5', WORLD_SIZE: '8', LOCAL_RANK: '1', SLURM_PROCID: '0', SLURM_NTASKS: '2' }],
  ])('reads what %s sets', async (_launcher, variables) => {
    const world = await initWith({ ...variables, LOCKSTEP_BACKEND: 'recording' });
    expect(asked).toMatchObject({ rank: 5, worldSize: 8 });
    expect(world.localRank).toBe(1);
    await world.close();
  });

  test('SLURM_NTASKS alone, as in an interactive allocation, means nothing', async () => {
    const world = await initWith({ SLURM_NTASKS: '8' });
    expect(world.worldSize).toBe(1);
    await world.close();
  });

  test('without a local rank all ranks are taken to be on one machine', async () => {
    const world = await initWith({ RANK: '2', WORLD_SIZE: '4', LOCKSTEP_BACKEND: 'recording' });
    expect(world.localRank).toBe(2);
    await world.close();
  });

  test('options win over variables, and all of them reach the backend', async () => {
    const world = await initWith(
      { RANK: '1', WORLD_SIZE: '4', LOCAL_RANK: '1', MASTER_ADDR: 'a', MASTER_PORT: '1', LOCKSTEP_BACKEND: 'grpc' },
      {
        backend: 'recording',
        rank: 2,
        worldSize: 3,
        localRank: 0,
        masterAddr: 'b',
        masterPort: 29500,
        timeoutMs: 5000,
      },
    );
    expect(asked).toMatchObject({ rank: 2, worldSize: 3, masterAddr: 'b', masterPort: 29500, timeoutMs: 5000 });
    expect(world.localRank).toBe(0);
    await world.close();
  });

  const wrong: readonly (readonly [string, Record<string, string>, WorldOptions | undefined, string])[] = [
    [
      'a rank without a size',
      { RANK: '1' },
      undefined,
      'RANK is 1, but neither environment variable WORLD_SIZE nor options.worldSize is given',
    ],
    [
      'a size without a rank',
      {},
      { worldSize: 4 },
      'options.worldSize is 4, but neither environment variable RANK nor options.rank is given',
    ],
    [
      'a rank that is no number',
      { RANK: 'one', WORLD_SIZE: '4' },
      undefined,
      "environment variable RANK is 'one', expected a whole number from 0",
    ],
    [
      'a negative rank',
      { RANK: '-1', WORLD_SIZE: '4' },
      undefined,
      "environment variable RANK is '-1', expected a whole number from 0",
    ],
    [
      'a size of 0',
      { RANK: '0', WORLD_SIZE: '0' },
      undefined,
      "environment variable WORLD_SIZE is '0', expected a whole number from 1",
    ],
    ['a fraction', { RANK: '0', WORLD_SIZE: '1.5' }, undefined, "environment variable WORLD_SIZE is '1.5'"],
    [
      'a rank beyond the size',
      { RANK: '4', WORLD_SIZE: '4' },
      undefined,
      'RANK is 4 and WORLD_SIZE is 4; expected a rank from 0 to 3',
    ],
    [
      'an option beyond the size',
      { WORLD_SIZE: '4' },
      { rank: 9 },
      'options.rank is 9 and WORLD_SIZE is 4; expected a rank from 0 to 3',
    ],
    [
      'a bad local rank',
      { RANK: '0', WORLD_SIZE: '2', LOCAL_RANK: 'x' },
      undefined,
      "environment variable LOCAL_RANK is 'x'",
    ],
    [
      'a bad port',
      { MASTER_PORT: '70000' },
      undefined,
      "environment variable MASTER_PORT is '70000', expected a port, 1 to 65535",
    ],
    ['an unknown backend', { LOCKSTEP_BACKEND: 'mpi' }, undefined, "there is no backend 'mpi'"],
    ['an unknown option', {}, { worldsize: 2 } as WorldOptions, "unknown key 'worldsize'"],
    ['an option of another type', {}, { rank: '1' } as never, 'options.rank'],
    [
      'a logger without methods',
      {},
      { logger: {} as never },
      'options.logger: expected an object with the methods debug, info, warn and error',
    ],
  ];

  test.each(wrong)('refuses %s, and names it', async (_name, variables, options, message) => {
    const error = await rejectionOf(initWith(variables, options));
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    expect(error.message).toContain(message);
  });

  test('a logger of the user`s own gets what listeners throw', async () => {
    const errors: string[] = [];
    class OwnLogger {
      debug(): void {}
      info(): void {}
      warn(): void {}
      error(message: string): void {
        errors.push(message);
      }
    }
    const world = await World.init({ logger: new OwnLogger() });
    const broken = (): void => {
      throw new Error('broken');
    };
    world.on('collectiveEnd', broken);
    world.group.on('collectiveEnd', broken);
    await world.barrier();
    expect(errors).toHaveLength(2);
    await world.close();
  });
});

test('World.init gives each rank a default generator of its own, unless it was seeded before', async () => {
  const drawn = async (before: () => void): Promise<number> =>
    generatorKey.run(new Generator(0), async () => {
      before();
      const world = await World.init();
      const number = defaultGenerator().nextUint32();
      await world.close();
      return number;
    });
  const [inMock] = await runWorld(1, () => defaultGenerator().nextUint32());
  expect(await drawn(() => undefined)).toBe(inMock);
  expect(await drawn(() => manualSeed(5))).toBe(new Generator(5).nextUint32());
});
