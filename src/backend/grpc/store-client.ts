/** The job's key-value store, as a rank uses it. */
import { invariant } from '../../core/invariant';
import { isLockstepError } from '../../core/errors';
import { endedWaitError, storeClosedError, type BackendStore, type CompareAndSetResult } from '../backend-store';
import { quote } from '../store-table';
import type { StoreConnection } from './store-connection';
import type { Operation, Result } from './proto';
import { nameOfKey, userPrefix } from './user-keys';

/** Which rank of which start of the job asks, and how long a call may take where it does not say. */
export interface StoreClientOptions {
  readonly rank: number;
  readonly generation: number;
  readonly timeoutMs: number;
}

/** As good as none, for a look at what is there; the store answers such a request when it comes, or right after. */
const LOOK_MS = 1;

/**
 * Every wait has a deadline, and a session that is lost is not made again: what the store held is lost with it.
 * Errors of every method: InvalidArgumentError for a mistake of this call (a value too large, a store that is full),
 * after which the store goes on; CollectiveTimeoutError; PeerLostError if the store's process is gone; ClosedError.
 */
export class StoreClient implements BackendStore {
  readonly #connection: StoreConnection;
  readonly #options: StoreClientOptions;
  /** Each rejects a wait that is going on. */
  readonly #waits = new Map<(error: Error) => void, string>();
  /** What ended the group of all ranks: [Note: waits in the store]. */
  #groupFailure: Error | undefined;
  #isClosed = false;

  constructor(connection: StoreConnection, options: StoreClientOptions) {
    this.#connection = connection;
    this.#options = options;
  }

  async get(key: string, timeoutMs?: number): Promise<Uint8Array> {
    const result = await this.#wait('get', { get: { key: this.#key(key) } }, [key], timeoutMs);
    invariant('value' in result, 'the store answered get with something else');
    return result.value.value;
  }

  async wait(keys: readonly string[], timeoutMs?: number): Promise<void> {
    await this.#wait('wait', { wait: { keys: keys.map((key) => this.#key(key)) } }, keys, timeoutMs);
  }

  async set(key: string, value: Uint8Array, timeoutMs?: number): Promise<void> {
    await this.#ask('set', { set: { key: this.#key(key), value } }, timeoutMs);
  }

  async add(key: string, amount: number, timeoutMs?: number): Promise<number> {
    const result = await this.#ask('add', { add: { key: this.#key(key), amount } }, timeoutMs);
    invariant('number' in result, 'the store answered add with something else');
    return result.number;
  }

  async compareAndSet(
    key: string,
    expected: Uint8Array | undefined,
    desired: Uint8Array,
    timeoutMs?: number,
  ): Promise<CompareAndSetResult> {
    const operation = { key: this.#key(key), expected, desired };
    const result = await this.#ask('compareAndSet', { compareAndSet: operation }, timeoutMs);
    invariant('compared' in result, 'the store answered compareAndSet with something else');
    return { isSet: result.compared.isSet, value: result.compared.value };
  }

  async delete(key: string, timeoutMs?: number): Promise<boolean> {
    const result = await this.#ask('delete', { delete: { key: this.#key(key) } }, timeoutMs);
    invariant('flag' in result, 'the store answered delete with something else');
    return result.flag;
  }

  async numKeys(prefix: string, timeoutMs?: number): Promise<number> {
    const result = await this.#ask('numKeys', { numKeys: { prefix: this.#key(prefix) } }, timeoutMs);
    invariant('number' in result, 'the store answered numKeys with something else');
    return result.number;
  }

  /** The group of all ranks has ended. @param errorFor what a wait that is going on fails with, by its op */
  endWaits(failure: Error, errorFor: (op: string) => Error): void {
    this.#groupFailure ??= failure;
    for (const [reject, op] of [...this.#waits]) reject(errorFor(op));
  }

  /** Waits end, and later calls are refused. The session is closed by whoever opened it. */
  close(): void {
    this.#isClosed = true;
    for (const [reject, op] of [...this.#waits]) reject(this.#closedError(op));
  }

  #key(key: string): string {
    return userPrefix(this.#options.generation) + key;
  }

  async #ask(op: string, operation: Operation, timeoutMs = this.#options.timeoutMs): Promise<Result> {
    if (this.#isClosed) throw this.#closedError(`store.${op}`);
    return this.#connection.request(op, operation, timeoutMs);
  }

  #wait(name: string, operation: Operation, keys: readonly string[], timeoutMs?: number): Promise<Result> {
    if (this.#groupFailure !== undefined) return this.#look(name, operation, keys, this.#groupFailure);
    return new Promise<Result>((resolve, reject) => {
      this.#waits.set(reject, `store.${name}`);
      this.#ask(name, operation, timeoutMs)
        .then(resolve, reject)
        .finally(() => this.#waits.delete(reject));
    });
  }

  async #look(name: string, operation: Operation, keys: readonly string[], failure: Error): Promise<Result> {
    try {
      return await this.#ask(name, operation, LOOK_MS);
    } catch (error) {
      if (!isLockstepError(error, 'LOCKSTEP_TIMEOUT')) throw error;
      const context = { op: `store.${name}`, rank: this.#options.rank };
      throw endedWaitError(context, keys.map((key) => quote(nameOfKey(key))).join(' or '), failure);
    }
  }

  #closedError(op: string): Error {
    return storeClosedError({ op, rank: this.#options.rank });
  }
}
