/** Jobs on the NCCL backend and the stand-ins for fault tests: a process a rank, and a device each. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../../helpers/free-port';
import { standInEnvironment } from '../../helpers/native-build';
import type { JobPlace } from '../../helpers/process-world';
import { RankProcess, RankProcesses } from '../../helpers/rank-processes';
import { NO_DEADLINE_MS } from './job';
import type { tasks } from './nccl-tasks';

export type NcclRank = RankProcess<typeof tasks>;

/** All that tests set: the next test finds none of it. */
const UNSET: Readonly<Record<string, string | null>> = {
  LOCKSTEP_NCCL_CHECKS: null,
  STANDIN_CUDA_UUID: null,
  STANDIN_NCCL_MISMATCH: null,
  STANDIN_NCCL_OP_DELAY_US: null,
  STANDIN_NCCL_PEER_DEATH: null,
};

export class NcclJobs {
  readonly #folder = mkdtempSync(join(tmpdir(), 'lockstep-nccl-faults-'));
  readonly #report = join(this.#folder, 'report');
  readonly #options: ConstructorParameters<typeof RankProcess>[0];
  readonly #processes: RankProcesses<typeof tasks>;
  readonly #ownProcesses: NcclRank[] = [];

  /** @param buildFolder of the addon and the stand-ins */
  constructor(buildFolder: string) {
    this.#options = {
      tasksFile: join(__dirname, 'nccl-tasks.ts'),
      env: { ...standInEnvironment(buildFolder), STANDIN_CUDA_REPORT: this.#report },
    };
    this.#processes = new RankProcesses<typeof tasks>(this.#options);
  }

  /** A joined world of `size` processes, all with these variables and no others. */
  async start(
    size: number,
    place: Partial<JobPlace> = {},
    variables: Readonly<Record<string, string | null>> = {},
  ): Promise<NcclRank[]> {
    const ranks = await this.take(size, variables);
    await this.open(ranks, place);
    return ranks;
  }

  /** Processes that run and have no world. */
  async take(size: number, variables: Readonly<Record<string, string | null>> = {}): Promise<NcclRank[]> {
    const ranks = this.#processes.take(size);
    for (const rank of ranks) rank.kill('SIGCONT'); // where a test failed that had stopped one
    await closeAll(ranks);
    await Promise.all(ranks.map((rank) => rank.call('setVariables', { ...UNSET, ...variables })));
    return ranks;
  }

  /** A process that no other test gets. */
  own(env: Readonly<Record<string, string>> = {}): NcclRank {
    const process = new RankProcess<typeof tasks>({ ...this.#options, env: { ...this.#options.env, ...env } });
    this.#ownProcesses.push(process);
    return process;
  }

  /** Where a new job meets. */
  async place(worldSize: number): Promise<Omit<JobPlace, 'rank'>> {
    return { worldSize, masterPort: await freePort(), timeoutMs: NO_DEADLINE_MS, backend: 'nccl' };
  }

  async open(ranks: readonly NcclRank[], place: Partial<JobPlace> = {}): Promise<void> {
    const job = { ...(await this.place(ranks.length)), ...place };
    await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank })));
  }

  /** What the stand-ins have reported since the last time: races, uses of memory that was given back, misuse. */
  takeReport(): string {
    const text = existsSync(this.#report) ? readFileSync(this.#report, 'utf8') : '';
    rmSync(this.#report, { force: true });
    return text;
  }

  async close(): Promise<void> {
    await Promise.all([this.#processes.close(), ...this.#ownProcesses.map((each) => each.end())]);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Close the worlds of these ranks; what failed in them must not keep that from working. */
export async function closeAll(ranks: readonly NcclRank[]): Promise<void> {
  await Promise.all(ranks.map((rank) => rank.call('close', undefined)));
}
