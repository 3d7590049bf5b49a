/**
 * The store of a mock world: one table, in memory, for all its ranks.
 *
 * As on processes, rank 0 serves it: when its world is closed, or it is lost, the store is gone for all.
 */
import { PeerLostError, asError } from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import { endedWaitError, storeClosedError, type BackendStore, type CompareAndSetResult } from '../backend-store';
import { StoreTable, waitRefusal } from '../store-table';
import type { MockRank } from './mock-rank';
import type { MockWorld } from './mock-world';
import { StoreWait } from './store-wait';

export class MockStore {
  readonly #world: MockWorld;
  readonly #table = new StoreTable();
  /** By rank: calls that the schedule has not brought to the store yet. They stay in order, as on one connection. */
  readonly #onTheirWay: readonly (() => void)[][];
  readonly #closedRanks = new Set<MockRank>();
  /** What ended the group of all ranks: [Note: waits in the store]. */
  #groupFailure: Error | undefined;
  /** How rank 0 went. */
  #hostLoss: { readonly how: string; readonly cause: Error | undefined } | undefined;

  constructor(world: MockWorld) {
    this.#world = world;
    this.#onTheirWay = world.ranks.map(() => []);
  }

  isClosedBy(rank: MockRank): boolean {
    return this.#closedRanks.has(rank);
  }

  /** A rank closes its world. */
  close(rank: MockRank): void {
    if (this.isClosedBy(rank)) return;
    this.#closedRanks.add(rank);
    this.#failWaits([rank], ({ op }) => storeClosedError({ op, rank: rank.globalRank }));
    if (rank.globalRank === 0) this.loseHost('closed its world. Close it last: a barrier before close() sees to that');
  }

  /** Rank 0 is gone. */
  loseHost(how: string, cause?: Error): void {
    this.#hostLoss ??= { how, cause };
    this.#failWaits(this.#world.ranks, ({ op, owner }) => this.#refusal(op, owner) as Error);
  }

  /** The group of all ranks has ended. */
  endWaits(cause: Error, errorFor: (rank: number, op: string) => Error): void {
    this.#groupFailure ??= cause;
    this.#failWaits(this.#world.ranks, ({ owner, op }) => errorFor(owner.globalRank, op));
  }

  /** End the waits whose time is over. */
  expire(): void {
    const nowMs = this.#world.clock.now();
    const late = (wait: StoreWait): boolean => wait.dueMs <= nowMs;
    this.#failWaits(this.#world.ranks, (wait) => wait.timeoutError(this.#table.describeMissing(wait.keys)), late);
  }

  /** A call of a rank, which takes effect when the schedule brings it to the store. */
  perform<R>(op: string, rank: MockRank, act: (table: StoreTable) => R): Promise<R> {
    return new Promise((resolve, reject) => {
      const refusal = this.#refusal(op, rank);
      if (refusal !== undefined) return reject(refusal);
      this.#bring(rank, () => {
        try {
          resolve(act(this.#table));
        } catch (error) {
          reject(asError(error));
        }
      });
    });
  }

  /** Wait until the keys have values; what `read` sees is what they are then. */
  async waitFor<R>(
    op: StoreWait['op'],
    rank: MockRank,
    keys: readonly string[],
    timeoutMs: number,
    read: (table: StoreTable) => R,
  ): Promise<R> {
    const refusal = this.#refusal(op, rank);
    if (refusal !== undefined) throw refusal;
    const wait = new StoreWait(this.#world, rank, op, keys, timeoutMs);
    let result: { readonly value: R } | undefined;
    this.#bring(rank, () => {
      if (wait.isOver) return;
      const refused = this.#waitRefusal(wait);
      if (refused !== undefined) return wait.fail(refused);
      wait.isHeld = true;
      wait.giveUp = this.#table.whenPresent(keys, () => {
        result = { value: read(this.#table) };
        wait.isComplete = true;
        this.#world.schedule.deliver(() => wait.complete());
      });
    });
    await wait.work;
    return (result as { readonly value: R }).value;
  }

  #bring(rank: MockRank, act: () => void): void {
    const queue = this.#onTheirWay[rank.globalRank] as (() => void)[];
    queue.push(act);
    this.#world.schedule.deliver(() => {
      queue.shift()?.();
      this.#world.noteChange(); // a wait that begins late has to be looked at too
    });
  }

  /** Why a call of this rank cannot start, if it cannot. */
  #refusal(op: string, rank: MockRank): Error | undefined {
    const context = { op, rank: rank.globalRank };
    if (this.isClosedBy(rank)) return storeClosedError(context);
    if (this.#hostLoss === undefined) return undefined;
    const { how, cause } = this.#hostLoss;
    const message = `${op} on rank ${rank.globalRank}: rank 0, which serves the store, ${withoutFullStop(how)}.`;
    return new PeerLostError(message, { ...context, ranks: [0], cause });
  }

  /** Why a call may not wait for its keys, if it may not and has to. */
  #waitRefusal({ op, owner, keys }: StoreWait): Error | undefined {
    if (this.#table.missing(keys).length === 0) return undefined;
    if (this.#groupFailure !== undefined) {
      const missing = this.#table.describeMissing(keys);
      return endedWaitError({ op, rank: owner.globalRank }, missing, this.#groupFailure);
    }
    return waitRefusal([...owner.storeWaits].filter((wait) => wait.isHeld && !wait.isComplete).length);
  }

  #failWaits(
    ranks: readonly MockRank[],
    errorFor: (wait: StoreWait) => Error,
    isMeant: (wait: StoreWait) => boolean = () => true,
  ): void {
    for (const wait of ranks.flatMap((rank) => [...rank.storeWaits])) {
      if (!wait.isComplete && isMeant(wait)) wait.fail(errorFor(wait));
    }
  }
}

/** One rank's end of it. */
export class MockStoreEnd implements BackendStore {
  readonly #store: MockStore;
  readonly #rank: MockRank;
  readonly #defaultTimeoutMs: () => number;

  constructor(store: MockStore, rank: MockRank, defaultTimeoutMs: () => number) {
    this.#store = store;
    this.#rank = rank;
    this.#defaultTimeoutMs = defaultTimeoutMs;
  }

  get(key: string, timeoutMs = this.#defaultTimeoutMs()): Promise<Uint8Array> {
    return this.#store.waitFor('store.get', this.#rank, [key], timeoutMs, (table) => table.get(key) as Uint8Array);
  }

  wait(keys: readonly string[], timeoutMs = this.#defaultTimeoutMs()): Promise<void> {
    return this.#store.waitFor('store.wait', this.#rank, [...keys], timeoutMs, () => undefined);
  }

  set(key: string, value: Uint8Array): Promise<void> {
    return this.#store.perform('store.set', this.#rank, (table) => table.set(key, value));
  }

  add(key: string, amount: number): Promise<number> {
    return this.#store.perform('store.add', this.#rank, (table) => table.add(key, amount));
  }

  compareAndSet(key: string, expected: Uint8Array | undefined, desired: Uint8Array): Promise<CompareAndSetResult> {
    return this.#store.perform('store.compareAndSet', this.#rank, (table) =>
      table.compareAndSet(key, expected, desired),
    );
  }

  delete(key: string): Promise<boolean> {
    return this.#store.perform('store.delete', this.#rank, (table) => table.delete(key));
  }

  numKeys(prefix: string): Promise<number> {
    return this.#store.perform('store.numKeys', this.#rank, (table) => table.count(prefix));
  }
}
