/** World.init on the backend 'grpc': several ranks in this process where that suffices, processes where it does not. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { startStore } from '../../../src/backend/grpc/store-server';
import type { Logger } from '../../../src/core/logger';
import { World } from '../../../src/process-group/world';
import type { WorldOptions } from '../../../src/process-group/world-options';
import { Tensor } from '../../../src/tensor/tensor';
import { freePort } from '../../helpers/free-port';
import { runnable } from '../../helpers/test-build';
import { rejectionOf } from './worlds';

const TOKEN = 'the secret of this job';
const LOCKSTEP_VARIABLES = [
  'LOCKSTEP_BACKEND',
  'LOCKSTEP_JOB_TOKEN',
  'LOCKSTEP_JOB_TOKEN_FILE',
  'LOCKSTEP_GENERATION',
  'LOCKSTEP_STORE',
  'LOCKSTEP_CALL_SITES',
];
const before = { ...process.env };
const worlds: World[] = [];
let folder: string;
let masterPort: number;

beforeEach(async () => {
  for (const name of LOCKSTEP_VARIABLES) delete process.env[name];
  folder = mkdtempSync(join(tmpdir(), 'world-init-'));
  masterPort = await freePort();
});

afterEach(async () => {
  await Promise.all(worlds.splice(0).map((world) => world.close()));
  for (const name of LOCKSTEP_VARIABLES) delete process.env[name];
  Object.assign(process.env, before);
  rmSync(folder, { recursive: true });
});

async function init(rank: number, worldSize: number, more: WorldOptions = {}): Promise<World> {
  const place = { rank, worldSize, masterAddr: '127.0.0.1', masterPort, timeoutMs: 10_000 };
  const world = await World.init({ ...place, ...more });
  worlds.push(world);
  return world;
}

function initAll(worldSize: number, more: WorldOptions = {}): Promise<World[]> {
  return Promise.all(Array.from({ length: worldSize }, (_unused, rank) => init(rank, worldSize, more)));
}

async function sumOfRanks(all: readonly World[]): Promise<number[]> {
  const tensors = all.map((world) => Tensor.from([world.rank + 1]));
  await Promise.all(all.map((world, index) => world.group.allReduce(tensors[index] as Tensor)));
  return tensors.map((tensor) => tensor.item());
}

describe.each(['socket', 'grpc', 'auto'] as const)('data plane %s', (dataPlane) => {
  test.each([1, 2, 4])('a world of %i reduces', async (size) => {
    const all = await initAll(size, { backend: 'grpc', dataPlane, token: TOKEN });
    expect(all.map((world) => world.group.backend.name)).toEqual(new Array(size).fill('grpc'));
    expect(await sumOfRanks(all)).toEqual(new Array(size).fill((size * (size + 1)) / 2));
  });
});

test('grpc is the backend where there are several processes', async () => {
  const [world] = await initAll(2);
  expect(world?.group.backend.name).toBe('grpc');
});

test.each(['localhost', '::1', '[::1]'])('a world meets at %s', async (masterAddr) => {
  expect(await sumOfRanks(await initAll(2, { masterAddr }))).toEqual([3, 3]);
});

test('rank 0 can close while the others still work, and its store does not hold them up', async () => {
  const [zero, one, two] = (await initAll(3)) as [World, World, World];
  const groups = await Promise.all([zero, one, two].map((world) => world.newGroup([1, 2])));
  await zero.close();
  const tensors = [Tensor.from([1]), Tensor.from([2])] as const;
  await Promise.all([groups[1]?.allReduce(tensors[0]), groups[2]?.allReduce(tensors[1])]);
  expect(tensors.map((tensor) => tensor.item())).toEqual([3, 3]);
});

test('the same port serves one world after the other', async () => {
  for (let start = 0; start < 3; start++) {
    expect(await sumOfRanks(await initAll(2, { generation: start }))).toEqual([3, 3]);
    await Promise.all(worlds.splice(0).map((world) => world.close()));
  }
});

describe('a store of its own', () => {
  test('serves all ranks, rank 0 too, and may die while the world works', async () => {
    const store = await startStore({ host: '127.0.0.1', port: masterPort, worldSize: 2, token: TOKEN });
    process.env['LOCKSTEP_STORE'] = 'external';
    const all = await initAll(2, { token: TOKEN }).finally(() => store.close());
    expect(await sumOfRanks(all)).toEqual([3, 3]);
  });

  test('that is not there is missed by rank 0 too', async () => {
    const error = await rejectionOf(init(0, 2, { store: 'external', timeoutMs: 200 }));
    expect(error).toMatchObject({ name: 'BackendUnavailableError' });
    expect(error.message).toContain(`127.0.0.1:${masterPort}`);
  });
});

describe('the lines of the program', () => {
  const LINE = String.raw`at tests/unit/process-group/world-init-grpc\.test\.ts:\d+:\d+`;

  test.each<[string, () => void, WorldOptions]>([
    ['the option', () => undefined, { callSites: true }],
    ['the variable', () => (process.env['LOCKSTEP_CALL_SITES'] = '1'), {}],
  ])('stand in the errors of mismatches, for each rank, where %s asks for them', async (_what, prepare, options) => {
    prepare();
    const [zero, one] = (await initAll(2, options)) as [World, World];
    const other = rejectionOf(one.group.allReduce(Tensor.from([1])));
    const { message } = await rejectionOf(zero.barrier());
    expect((await other).message).toBe(message);
    expect(message).toMatch(new RegExp(`rank 0: barrier\\(\\) ${LINE}\n {2}rank 1: allReduce\\(.*\\) ${LINE}\n`));
  });

  test('and of timeouts, for the call that waits and those that the others are in', async () => {
    const [zero, one] = (await initAll(2, { callSites: true })) as [World, World];
    const other = rejectionOf(one.group.recv(Tensor.from([1]), 0));
    const { message } = await rejectionOf(zero.barrier({ timeoutMs: 100 }));
    expect(message).toMatch(
      new RegExp(`^barrier.*group world, ${LINE}, on rank 0.*Rank 1 waits in recv\\(.*, ${LINE}\\.`),
    );
    expect((await other).message).toBe(`${message}`);
  });

  test('are not looked for otherwise', async () => {
    const [zero, one] = (await initAll(2)) as [World, World];
    const other = rejectionOf(one.group.allReduce(Tensor.from([1])));
    const { message } = await rejectionOf(zero.barrier());
    expect(message).toMatch(/rank 0: barrier\(\)\n/);
    await other;
  });
});

describe('the token', () => {
  test('is read from a file, without the line break that an editor leaves', async () => {
    const path = join(folder, 'token');
    writeFileSync(path, `${TOKEN}\n`);
    process.env['LOCKSTEP_JOB_TOKEN_FILE'] = path;
    const zero = init(0, 2);
    delete process.env['LOCKSTEP_JOB_TOKEN_FILE'];
    process.env['LOCKSTEP_JOB_TOKEN'] = TOKEN;
    expect(await sumOfRanks(await Promise.all([zero, init(1, 2)]))).toEqual([3, 3]);
  });

  test('stands in no log line, no error and no inspection', async () => {
    const lines: string[] = [];
    const log = (message: string): void => void lines.push(message);
    const logger: Logger = { debug: log, info: log, warn: log, error: log };
    const zero = init(0, 2, { token: TOKEN, logger });
    const error = await rejectionOf(init(1, 2, { token: 'another secret', logger }));
    const all = [await init(1, 2, { token: TOKEN, logger }), await zero];
    const shown = [
      ...lines,
      inspect([error, all, all.map((world) => world.group.backend)], { depth: 12, showHidden: true }),
    ];
    expect(shown.join('\n')).toMatch(/token/);
    expect(shown.join('\n')).not.toMatch(/the secret of this job|another secret/);
  });

  const wrong: readonly (readonly [string, () => void, WorldOptions, RegExp])[] = [
    [
      'a file that is not there',
      () => (process.env['LOCKSTEP_JOB_TOKEN_FILE'] = join(folder, 'absent')),
      {},
      /file that environment variable LOCKSTEP_JOB_TOKEN_FILE names cannot be read: ENOENT.*absent/,
    ],
    [
      'an empty file',
      () => {
        writeFileSync(join(folder, 'empty'), '\n');
        process.env['LOCKSTEP_JOB_TOKEN_FILE'] = join(folder, 'empty');
      },
      {},
      /LOCKSTEP_JOB_TOKEN_FILE names \('.*empty'\) is empty/,
    ],
    ['an empty option', () => undefined, { token: '' }, /options\.token/],
    ['a path as a certificate', () => undefined, { tls: { ca: '/x', cert: '/x', key: '/x' } }, /text of a PEM file/],
    [
      'a generation that is no number',
      () => (process.env['LOCKSTEP_GENERATION'] = 'one'),
      {},
      /LOCKSTEP_GENERATION is 'one', expected the number of this start of the job, 0 to/,
    ],
    [
      'a store that is neither',
      () => (process.env['LOCKSTEP_STORE'] = 'yes'),
      {},
      /LOCKSTEP_STORE is 'yes', expected rank0 or external/,
    ],
    [
      'call sites that are neither on nor off',
      () => (process.env['LOCKSTEP_CALL_SITES'] = 'yes'),
      {},
      /LOCKSTEP_CALL_SITES is 'yes', expected 0 or 1/,
    ],
    ['an unknown data plane', () => undefined, { dataPlane: 'tcp' as never }, /options\.dataPlane/],
  ];
  test.each(wrong)('and its companions are checked: %s', async (_what, prepare, options, message) => {
    prepare();
    const error = await rejectionOf(init(0, 2, options));
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    expect(error.message).toMatch(message);
  });
});

describe('a world that cannot be made', () => {
  test('leaves nothing open: the port is free at once', async () => {
    // Enough for rank 0 to reach its own store on a busy machine; else it says that nobody serves one.
    const error = await rejectionOf(init(0, 2, { timeoutMs: 1000 }));
    expect(error).toMatchObject({ name: 'CollectiveTimeoutError', context: { ranks: [1] } });
    expect(error.message).toMatch(/rank 1 of 2 did not join within the \d+ ms/);
    expect(await sumOfRanks(await initAll(2))).toEqual([3, 3]);
  });

  test('a second rank 1 is refused, and the world works', async () => {
    const all = await initAll(2);
    const error = await rejectionOf(init(1, 2));
    expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { ranks: [1] } });
    expect(error.message).toMatch(/rank 1 of this job is taken/);
    expect(await sumOfRanks(all)).toEqual([3, 3]);
  });

  test('a second rank 0 finds the port taken', async () => {
    const all = await initAll(2);
    const error = await rejectionOf(init(0, 2));
    expect(error).toMatchObject({ name: 'BackendUnavailableError' });
    expect(error.message).toMatch(new RegExp(`cannot listen at 127.0.0.1:${masterPort}.*another rank 0`));
    expect(await sumOfRanks(all)).toEqual([3, 3]);
  });

  test('a data plane that is not there yet says so on the rank that asks', async () => {
    const error = await rejectionOf(init(0, 2, { dataPlane: 'native' }));
    expect(error).toMatchObject({ name: 'BackendUnavailableError' });
    expect(error.message).toMatch(/'native'/);
  });
});

test('processes of their own meet, reduce, and end by themselves', async () => {
  const { options, files } = runnable(join(__dirname, 'world-init-rank.ts'));
  const runs = [0, 1].map((rank) => {
    const place = { RANK: `${rank}`, WORLD_SIZE: '2', MASTER_ADDR: 'localhost', MASTER_PORT: `${masterPort}` };
    const child = spawn(process.execPath, [...options, ...files], {
      env: { ...process.env, ...place, LOCKSTEP_JOB_TOKEN: TOKEN },
    });
    const output: Buffer[] = [];
    child.stdout.on('data', (bytes: Buffer) => output.push(bytes));
    child.stderr.on('data', (bytes: Buffer) => output.push(bytes));
    return new Promise<string>((resolve) => {
      child.once('close', (code) => resolve(`${Buffer.concat(output).toString()}exit ${code}`));
    });
  });
  expect(await Promise.all(runs)).toEqual(['rank 0: 3\nexit 0', 'rank 1: 3\nexit 0']);
});
