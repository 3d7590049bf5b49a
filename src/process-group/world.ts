import { inspect } from 'node:util';
import type { Backend, CallOptions } from '../backend/backend';
import { MockBackend, createBackend, type MockOptions } from '../backend/registry';
import { UnsupportedError } from '../core/errors';
import { stderrLogger, type Logger } from '../core/logger';
import { defaultGenerator, rankSeed } from '../core/random';
import type { Work } from '../core/work';
import { GROUP_EVENTS, type GroupEvents } from './events';
import { placeOfWorld } from './group-place';
import { GuardedEmitter } from './guarded-emitter';
import { ProcessGroup } from './process-group';
import type { Store } from './store';
import { readWorldSettings, type WorldOptions } from './world-options';
import { WorldStore } from './world-store';

/** Options of World.fromBackend. */
export interface WorldBackendOptions {
  /** Position among the ranks of this machine; default: the rank. */
  readonly localRank?: number | undefined;
  /** Gets what event listeners throw; default: stderr, from the level that LOCKSTEP_LOG names. */
  readonly logger?: Logger | undefined;
}

/**
 * All ranks of one job, seen from one of them: where a distributed program begins and ends.
 *
 *     const world = await World.init();
 *     try {
 *       await train(world.group);
 *     } finally {
 *       await world.close();
 *     }
 */
export class World {
  /** The group of all ranks. */
  readonly group: ProcessGroup;
  /** This process's position among the ranks of its machine: which GPU is its own. */
  readonly localRank: number;
  readonly #events: GuardedEmitter<GroupEvents>;
  readonly #store: Store | undefined;

  private constructor(backend: Backend, { localRank = backend.rank, logger = stderrLogger }: WorldBackendOptions) {
    this.localRank = localRank;
    this.#events = new GuardedEmitter<GroupEvents>(GROUP_EVENTS, logger);
    const place = { ...placeOfWorld(backend.worldSize), worldEvents: this.#events };
    this.group = new ProcessGroup(backend, { logger }, place);
    this.#store = backend.store === undefined ? undefined : new WorldStore(backend.store, backend.rank);
  }

  /**
   * Join the job that the environment (or `options`) describes: RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them,
   * or the variables of Slurm or Open MPI. With none of them set: a world of one, on the mock.
   *
   * @throws InvalidArgumentError naming the option or variable that is wrong or missing, or what ranks disagree about
   * @throws BackendUnavailableError if the backend cannot run here, or rank 0 was not there within `timeoutMs`
   * @throws CollectiveTimeoutError naming the ranks that did not join within `timeoutMs`
   * @throws PeerLostError if a rank was lost while the world was being made
   */
  static async init(options?: WorldOptions): Promise<World> {
    const { backend: name, ...init } = readWorldSettings(options);
    const backend = await createBackend(name, init);
    seedByRank(init.rank);
    return new World(backend, { localRank: init.localRank, logger: init.logger });
  }

  /** A world of one, on the mock. */
  static mock(): World {
    return new World(MockBackend.single(), {});
  }

  /** A world of `size` ranks in this process, on the mock: entry r is rank r's. `runWorld` also runs the ranks. */
  static createMock(size: number, options?: MockOptions): World[] {
    return MockBackend.createWorld(size, options).map((backend) => new World(backend, {}));
  }

  /** The world whose ranks `backend` connects; the world owns it from now on. */
  static fromBackend(backend: Backend, options: WorldBackendOptions = {}): World {
    return new World(backend, options);
  }

  /** The same as `group`. */
  get defaultGroup(): ProcessGroup {
    return this.group;
  }

  get rank(): number {
    return this.group.rank;
  }

  get worldSize(): number {
    return this.group.worldSize;
  }

  /** True on rank 0, which prints and saves. */
  get isMain(): boolean {
    return this.group.rank === 0;
  }

  /**
   * Keys and values that all ranks share: see Store.
   * @throws UnsupportedError if the backend has none
   */
  get store(): Store {
    if (this.#store !== undefined) return this.#store;
    throw new UnsupportedError(
      `world.store: the backend '${this.group.backend.name}' has no store; 'grpc' and 'mock' do. Pass values with broadcastObject and its like.`,
      { op: 'store', rank: this.rank },
    );
  }

  /** Settles once every rank has called it. */
  barrier(options?: CallOptions): Work {
    return this.group.barrier(options);
  }

  /** A group of some ranks; called by every rank of the world. See ProcessGroup.newGroup. */
  newGroup(ranks: readonly number[], options?: CallOptions): Promise<ProcessGroup> {
    return this.group.newGroup(ranks, options);
  }

  /** Listen to the events of all groups of this world, as this rank sees them. See ProcessGroup.on. */
  on<K extends keyof GroupEvents>(event: K, listener: GroupEvents[K]): this {
    this.#events.on(event, listener);
    return this;
  }

  /** Listen to the next such event. */
  once<K extends keyof GroupEvents>(event: K, listener: GroupEvents[K]): this {
    this.#events.once(event, listener);
    return this;
  }

  off<K extends keyof GroupEvents>(event: K, listener: GroupEvents[K]): this {
    this.#events.off(event, listener);
    return this;
  }

  /**
   * This rank cannot go on because of `reason`: end the group of all ranks everywhere. Calls on it, pending and later,
   * reject with ClosedError, whose cause is `reason`. For the `catch` around a rank's program, so that the others learn why
   * it stopped; close the world then, as always.
   */
  abort(reason: unknown): void {
    this.group.abort(reason);
  }

  /** Close all groups of this world, on this rank. Idempotent; later calls on them reject with ClosedError. */
  close(): Promise<void> {
    return this.group.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  [inspect.custom](): string {
    return `World <rank ${this.rank} of ${this.worldSize}, local rank ${this.localRank}, ${this.group.backend.name}>`;
  }
}

/**
 * Ranks that draw from the same default stream would drop the same units. The stream is that of the mock world's rank with
 * seed 0, so that a program draws the same numbers there. A generator that was seeded or used before stays as it is.
 */
function seedByRank(rank: number): void {
  const generator = defaultGenerator();
  const { seed, position } = generator.getState();
  if (seed === 0 && position === 0) generator.setState({ seed: rankSeed(0, rank), position: 0 });
}
