/** Jobs of real processes for fault tests. */
import { join } from 'node:path';
import { expectError, type ExpectedError } from '../../conformance/expectations';
import type { WireError } from '../../../src/core/error-wire';
import { freePort } from '../../helpers/free-port';
import type { JobPlace } from '../../helpers/process-world';
import { RankProcess, RankProcesses, type RankProcessOptions } from '../../helpers/rank-processes';
import type { tasks } from './tasks';

export type Tasks = typeof tasks;
export type Rank = RankProcess<Tasks>;
export type Plane = 'grpc' | 'socket';

export const PLANES: readonly Plane[] = ['socket', 'grpc'];

/** "At once", on a machine that does other things too. Deadlines in these tests are far longer, or are what is tested. */
export const AT_ONCE_MS = 5000;
export const NO_DEADLINE_MS = 120_000;

const OPTIONS: RankProcessOptions = { tasksFile: join(__dirname, 'tasks.ts') };

/** Processes that the tests of a file share; a test may kill them. */
export class Jobs {
  readonly #processes: RankProcesses<Tasks>;
  readonly #ownProcesses: Rank[] = [];

  constructor(options: Partial<RankProcessOptions> = {}) {
    this.#processes = new RankProcesses<Tasks>({ ...OPTIONS, ...options });
  }

  /** A joined world of `size` processes. */
  async start(size: number, place: Partial<JobPlace>): Promise<Rank[]> {
    const ranks = await this.take(size);
    const job = { ...(await this.place(size)), ...place };
    await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank })));
    return ranks;
  }

  /** Processes that run and have no world. */
  async take(size: number): Promise<Rank[]> {
    const ranks = this.#processes.take(size);
    for (const rank of ranks) rank.kill('SIGCONT'); // where a test failed that had stopped one
    await closeAll(ranks);
    return ranks;
  }

  /** A process of its own, started in another way. */
  own(options: Partial<RankProcessOptions>): Rank {
    const process = new RankProcess<Tasks>({ ...OPTIONS, ...options });
    this.#ownProcesses.push(process);
    return process;
  }

  /** Where a new job meets. */
  async place(worldSize: number): Promise<Omit<JobPlace, 'rank'>> {
    return { worldSize, masterPort: await freePort(), timeoutMs: NO_DEADLINE_MS, token: 'the token of this job' };
  }

  async close(): Promise<void> {
    await Promise.all([this.#processes.close(), ...this.#ownProcesses.map((each) => each.end())]);
  }
}

/** Close the worlds of these ranks; what failed in them must not keep that from working. */
export async function closeAll(ranks: readonly Rank[]): Promise<void> {
  await Promise.all(ranks.map((rank) => rank.call('close', undefined)));
}

/** @throws unless the error is as expected and names exactly these ranks */
export function expectNamed(
  where: string,
  error: WireError | null | undefined,
  ranks: number[],
  expected: ExpectedError,
): void {
  if (error === null || error === undefined) throw new Error(`${where}: nothing failed`);
  expectError(where, error, {
    ...expected,
    says: [...ranks.map((rank) => new RegExp(`\\b${rank}\\b`)), ...(expected.says ?? [])],
  });
  if (JSON.stringify(error.ranks) !== JSON.stringify(ranks)) {
    throw new Error(
      `${where}: names ranks ${JSON.stringify(error.ranks)}, expected [${ranks.join()}]: ${error.message}`,
    );
  }
}
