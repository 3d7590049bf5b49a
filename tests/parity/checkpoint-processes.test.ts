/** Checkpoints of processes: saved at stage 3 by some, loaded at any stage by others. */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isLong } from '../helpers/counts';
import { freePort } from '../helpers/free-port';
import { RankProcesses } from '../helpers/rank-processes';
import type { CheckpointArgs, CheckpointRun } from './checkpoint-program';
import type { tasks } from './zero-tasks';

const LIMIT_MS = 60_000;

const processes = new RankProcesses<typeof tasks>({ tasksFile: join(__dirname, 'zero-tasks.ts') });
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'lockstep-checkpoint-'));
});
afterAll(async () => {
  await processes.close();
  await rm(folder, { recursive: true });
});

/** What each of `size` processes that share a world is left with. */
async function run(size: number, args: Omit<CheckpointArgs, 'folder'>): Promise<CheckpointRun[]> {
  const ranks = processes.take(size);
  const job = { worldSize: size, masterPort: await freePort(), timeoutMs: LIMIT_MS };
  await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank }, LIMIT_MS)));
  const runs = await Promise.all(
    ranks.map((process) => process.call('trainWithCheckpoints', { ...args, folder }, LIMIT_MS)),
  );
  await Promise.all(ranks.map((process) => process.call('close', undefined)));
  return runs;
}

test(
  'two processes save at stage 3, at once and in the background, and others go on from either',
  async () => {
    const saved = await run(2, { stage: 3, seed: 1, load: undefined });
    expect(saved[1]).toEqual(saved[0]);
    expect((await readdir(folder)).sort()).toEqual(['step-1', 'step-2']);
    const others = isLong ? ([1, 2, 3] as const) : ([2] as const);
    for (const size of others) {
      for (const stage of isLong ? ([0, 1, 2, 3] as const) : ([1] as const)) {
        for (const load of [1, 2] as const) {
          const loaded = await run(size, { stage, seed: 2, load });
          expect({ size, stage, load, loaded }).toEqual({
            size,
            stage,
            load,
            loaded: Array(size).fill({ [load]: saved[0]![load] }),
          });
        }
      }
    }
  },
  isLong ? 300_000 : LIMIT_MS,
);
