/** DeviceBuffers over the NCCL backend, on the stand-ins. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MockBackend } from '../../src/backend/registry';
import { count } from '../helpers/counts';
import { freePort } from '../helpers/free-port';
import { describeNative, standInEnvironment } from '../helpers/native-build';
import { runNcclProgram } from '../helpers/nccl-program';
import { RankProcesses, type RankProcess } from '../helpers/rank-processes';
import type { tasks } from './nccl-device-tasks';
import { expectNoReport } from './nccl-factory';

type Tasks = typeof tasks;

const LIMIT_MS = 60_000;

describeNative('device buffers on the stand-ins', ['addon', 'stand-ins'], (build) => {
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-nccl-device-'));
  const report = join(folder, 'report');
  const processes = new RankProcesses<Tasks>({
    tasksFile: join(__dirname, 'nccl-device-tasks.ts'),
    env: { ...standInEnvironment(build), STANDIN_CUDA_REPORT: report },
  });
  afterAll(async () => {
    await processes.close();
    rmSync(folder, { recursive: true, force: true });
  });

  async function inWorld<Result>(size: number, run: (rank: RankProcess<Tasks>) => Promise<Result>): Promise<Result[]> {
    const ranks = processes.take(size);
    const job = { backend: 'nccl', worldSize: size, masterPort: await freePort(), token: 'a token', timeoutMs: 10_000 };
    await Promise.all(ranks.map((each, rank) => each.call('open', { ...job, rank })));
    const results = await Promise.all(ranks.map(run));
    await Promise.all(ranks.map((each) => each.call('close', undefined)));
    expectNoReport(report);
    return results;
  }

  test(
    'every collective gives on device buffers what it gives on host buffers',
    async () => {
      const byRank = await inWorld(3, (rank) => rank.call('collectives', undefined));
      for (const results of byRank) {
        expect(results).toHaveLength(10);
        for (const [name, onHost, onDevice] of results) expect([name, onDevice]).toEqual([name, onHost]);
      }
    },
    LIMIT_MS,
  );

  test(
    'a random program of mixed calls in overlapping groups, with buffers on host and device, gives what it gives on the mock',
    async () => {
      const numSeeds = count('random programs of nccl on the stand-ins', 2, 40);
      for (let seed = 1; seed <= numSeeds; seed++) {
        const program = { seed, numCalls: 60, timeoutMs: 10_000, hasAverages: false };
        const mocks = MockBackend.createWorld(seed % 2 === 0 ? 2 : 4);
        const expected = await Promise.all(mocks.map((backend) => runNcclProgram(backend, program)));
        await Promise.all(mocks.map((backend) => backend.close()));
        const byRank = await inWorld(mocks.length, (rank) => rank.call('randomProgram', program));
        expect({ seed, byRank }).toEqual({
          seed,
          byRank: expected.map((calls) => calls.map(({ title, bytes }) => `${title}: ${bytes ?? ''}`)),
        });
      }
    },
    LIMIT_MS,
  );

  test(
    'copies, collectives and updates take effect in the order of the calls, without waiting for each other',
    async () => {
      const steps = 50;
      const byRank = await inWorld(2, (rank) => rank.call('pipeline', { steps }));
      const expected = [1, 2, 3, 4].map((gradient) => -0.5 * steps * gradient);
      expect(byRank).toEqual([expected, expected]);
    },
    LIMIT_MS,
  );
});
