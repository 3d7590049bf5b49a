/** Random collectives, several in flight, on overlapping groups: four processes give the bits that the mock gives. */
import { join } from 'node:path';
import { MockBackend } from '../../src/backend/mock/mock-backend';
import { count } from '../helpers/counts';
import { freePort } from '../helpers/free-port';
import { RankProcesses } from '../helpers/rank-processes';
import { SOAK_SIZE, soakPlan } from './soak-plan';
import { soak, type SoakArgs } from './soak-program';
import type { tasks } from './soak-tasks';

const NUM_CALLS = count('soak: random collectives on 4 processes', 120, 2000);
/** One world runs this many; further ones have seeds of their own. */
const CALLS_PER_WORLD = 200;
const LIMIT_MS = 120_000;

const processes = new RankProcesses<typeof tasks>({ tasksFile: join(__dirname, 'soak-tasks.ts') });
afterAll(() => processes.close());

function onMock(args: SoakArgs): Promise<string[][]> {
  const world = MockBackend.createWorld(SOAK_SIZE, { sourceLines: false });
  return Promise.all(world.map((backend) => backend.run(() => soak(backend, args))));
}

async function onProcesses(args: SoakArgs, dataPlane: 'grpc' | 'socket'): Promise<string[][]> {
  const ranks = processes.take(SOAK_SIZE);
  const job = { worldSize: SOAK_SIZE, masterPort: await freePort(), dataPlane, timeoutMs: 30_000 };
  await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank })));
  const digests = await Promise.all(ranks.map((process) => process.call('soak', args, LIMIT_MS)));
  await Promise.all(ranks.map((process) => process.call('close', undefined)));
  return digests;
}

const worlds = Array.from({ length: Math.ceil(NUM_CALLS / CALLS_PER_WORLD) }, (_unused, seed) => seed);

test.each(worlds)(
  'soak with seed %i gives the mock’s bits on both data planes',
  async (seed) => {
    const args = { seed, numCalls: CALLS_PER_WORLD };
    const want = await onMock(args);
    const calls = soakPlan(seed, CALLS_PER_WORLD).flatMap((round) => round.calls);
    for (const dataPlane of ['socket', 'grpc'] as const) {
      const got = await onProcesses(args, dataPlane);
      got.forEach((digests, rank) => {
        const wrong = calls.filter(({ index }) => digests[index] !== want[rank]?.[index]);
        expect({ dataPlane, rank, wrong: wrong.slice(0, 3) }).toEqual({ dataPlane, rank, wrong: [] });
      });
    }
  },
  2 * LIMIT_MS,
);
