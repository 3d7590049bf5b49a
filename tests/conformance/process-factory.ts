import { join } from 'node:path';
import type { BackendCapabilities } from '../../src/backend/backend';
import { DTYPES } from '../../src/core/dtype';
import { ReduceOp } from '../../src/core/reduce-op';
import { count, isLong } from '../helpers/counts';
import { freePort } from '../helpers/free-port';
import { RankProcesses, type RankProcess } from '../helpers/rank-processes';
import type { tasks } from './process-tasks';
import type { ProgramName, ResultOf } from './programs';
import { SIZES, type BackendFactory, type RankOutcome, type WorldRun } from './property';

type Tasks = typeof tasks;

const CAPABILITIES: BackendCapabilities = {
  devices: ['cpu'],
  dtypes: DTYPES,
  reduceOps: Object.values(ReduceOp),
  progress: 'event-loop',
  bitwise: true,
};

/** A property may need dozens of worlds. */
const PROPERTY_LIMIT_MS = 120_000;
/** Some worlds have deadlines that are shorter than it takes to join. */
const JOIN_TIMEOUT_MS = 20_000;
const TOKEN = 'the token of the conformance suite';

export interface ProcessFactoryOptions {
  /** Default grpc. */
  readonly backend?: string;
  readonly capabilities?: BackendCapabilities;
  readonly oneCaseIn?: number;
  readonly sizes?: readonly number[];
  /** Added to the environment of the processes. */
  readonly env?: Readonly<Record<string, string>>;
  /** Throws if something was wrong in the world that has just closed. */
  readonly checkWorld?: () => void;
}

/** Worlds of one process a rank, joined over loopback. Ends its processes with `close`. */
export class ProcessFactory implements BackendFactory {
  readonly capabilities: BackendCapabilities;
  readonly oneCaseIn: number;
  readonly sizes: readonly number[];
  readonly limitMs = PROPERTY_LIMIT_MS;
  readonly #dataPlane: 'grpc' | 'socket';
  readonly #options: ProcessFactoryOptions;
  readonly #processes: RankProcesses<Tasks>;
  /** Two properties that ran at once would share processes. */
  #previous: Promise<unknown> = Promise.resolve();

  constructor(dataPlane: 'grpc' | 'socket', options: ProcessFactoryOptions = {}) {
    this.#dataPlane = dataPlane;
    this.#options = options;
    this.capabilities = options.capabilities ?? CAPABILITIES;
    this.oneCaseIn = options.oneCaseIn ?? count('conformance over processes: of many cases one in', 10, 1);
    this.sizes = options.sizes ?? sizesOver(dataPlane);
    this.#processes = new RankProcesses<Tasks>({ tasksFile: join(__dirname, 'process-tasks.ts'), env: options.env });
  }

  readonly run = <Name extends ProgramName>(run: WorldRun<Name>): Promise<RankOutcome<ResultOf<Name>>[]> => {
    const outcomes = this.#previous.then(() => this.#runWorld(run));
    this.#previous = outcomes.catch(() => undefined);
    return outcomes;
  };

  close(): Promise<void> {
    return this.#processes.close();
  }

  async #runWorld<Name extends ProgramName>(run: WorldRun<Name>): Promise<RankOutcome<ResultOf<Name>>[]> {
    const ranks = this.#processes.take(run.size);
    try {
      await this.#open(ranks, run.timeoutMs);
      const task = { program: run.program, args: run.args };
      const outcomes = await all(ranks, (rank) => rank.call('run', task));
      await all(ranks, (rank) => rank.call('close', undefined));
      this.#options.checkWorld?.();
      return outcomes as RankOutcome<ResultOf<Name>>[];
    } catch (error) {
      await this.close(); // nothing of a world that failed may reach the next one
      throw error;
    }
  }

  async #open(ranks: readonly RankProcess<Tasks>[], timeoutMs = 10_000): Promise<void> {
    const masterPort = await freePort();
    const deadlines = { timeoutMs, joinTimeoutMs: JOIN_TIMEOUT_MS };
    const { backend } = this.#options;
    const job = {
      backend,
      worldSize: ranks.length,
      masterPort,
      dataPlane: this.#dataPlane,
      token: TOKEN,
      ...deadlines,
    };
    await all(ranks, (process, rank) => process.call('open', { ...job, rank }));
  }
}

/** The links in memory have all worlds in the short run too; what differs here are the links. */
const FEW_SIZES = { grpc: [1, 3], socket: [1, 4] } as const;

function sizesOver(dataPlane: 'grpc' | 'socket'): readonly number[] {
  const few = FEW_SIZES[dataPlane];
  count(`conformance over processes: sizes of worlds, ${dataPlane}`, few.length, SIZES.length);
  return isLong ? SIZES : few;
}

/** As Promise.all, but waits for all also when one fails, and names the rank. */
async function all<Item, Result>(
  items: readonly Item[],
  run: (item: Item, rank: number) => Promise<Result>,
): Promise<Result[]> {
  const settled = await Promise.allSettled(items.map(run));
  return settled.map((each, rank) => {
    if (each.status === 'fulfilled') return each.value;
    const cause = each.reason as Error;
    throw new Error(`rank ${rank}: ${cause.name}: ${cause.message}`, { cause });
  });
}
