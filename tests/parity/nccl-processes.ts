/** Worlds of the NCCL backend on the stand-ins: a process a rank, and a device each. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isLong } from '../helpers/counts';
import { freePort } from '../helpers/free-port';
import { standInEnvironment } from '../helpers/native-build';
import type { JobPlace } from '../helpers/process-world';
import { RankProcesses, type RankProcess } from '../helpers/rank-processes';
import type { tasks } from './nccl-tasks';

export type NcclRank = RankProcess<typeof tasks>;

/** For hangs. */
export const LIMIT_MS = isLong ? 600_000 : 120_000;

export class NcclProcesses {
  readonly #folder = mkdtempSync(join(tmpdir(), 'lockstep-nccl-parity-'));
  readonly #report = join(this.#folder, 'report');
  readonly #processes: RankProcesses<typeof tasks>;

  /** @param buildFolder of the addon and the stand-ins */
  constructor(buildFolder: string) {
    this.#processes = new RankProcesses<typeof tasks>({
      tasksFile: join(__dirname, 'nccl-tasks.ts'),
      env: { ...standInEnvironment(buildFolder), STANDIN_CUDA_REPORT: this.#report },
    });
  }

  /** What `run` gives on each rank of a world. @throws also where the stand-ins saw a race or a misuse */
  async inWorld<R>(
    size: number,
    run: (rank: NcclRank) => Promise<R>,
    place: Pick<JobPlace, 'backend'> = { backend: 'nccl' },
  ): Promise<R[]> {
    const ranks = this.#processes.take(size);
    const job = { worldSize: size, masterPort: await freePort(), timeoutMs: LIMIT_MS, ...place };
    await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank }, LIMIT_MS)));
    const results = await Promise.all(ranks.map(run));
    await Promise.all(ranks.map((process) => process.call('close', undefined)));
    expect(existsSync(this.#report) ? readFileSync(this.#report, 'utf8') : '').toBe('');
    return results;
  }

  async close(): Promise<void> {
    await this.#processes.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
