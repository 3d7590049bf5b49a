/** The job's key-value store, as a rank uses it. */
import { invariant } from '../../core/invariant';
import { isLockstepError } from '../../core/errors';
import { systemClock } from '../../core/clock';
import { endedWaitError, storeClosedError, type BackendStore, type CompareAndSetResult } from '../backend-store';
import type { StoreConnection } from './store-connection';
import type { Operation, Result } from './proto';
import { userPrefix } from './user-keys';

/** Which rank of which start of the job asks, and how long a call may take where it does not say. */
export interface StoreClientOptions {
  readonly rank: number;
  readonly generation: number;
  readonly timeoutMs: number;
}

/**
 * [Note: a look] A `get` or `wait` with this for its time does not wait: the store answers at once, with a timeout whose
 * message is the names of the keys that are missing.
 */
const LOOK_MS = 0;
/** How long close() waits for answers that are under way. */
const CLOSE_MS = 1000;

/** Calls that are going on: what rejects each, and its op. */
type Calls = Map<(error: Error) => void, string>;

/**
 * Every wait has a deadline, and a session that is lost is not made again: what the store held is lost with it.
 * Errors of every method: InvalidArgumentError for a mistake of this call (a value too large, a store that is full),
 * after which the store goes on; CollectiveTimeoutError; PeerLostError if the store's process is gone; ClosedError.
 */
export class StoreClient implements BackendStore {
  readonly #connection: StoreConnection;
  readonly #options: StoreClientOptions;
  /** Calls that wait until keys have values. */
  readonly #waits: Calls = new Map();
  /** All other calls, which the store answers when they come. */
  readonly #others: Calls = new Map();
  /** What ended the group of all ranks: [Note: waits in the store]. */
  #groupFailure: Error | undefined;
  #onAnswered: () => void = () => undefined;
  #closing: Promise<void> | undefined;

  constructor(connection: StoreConnection, options: StoreClientOptions) {
    this.#connection = connection;
    this.#options = options;
  }

  async get(key: string, timeoutMs?: number): Promise<Uint8Array> {
    const result = await this.#wait('get', { get: { key: this.#key(key) } }, timeoutMs);
    invariant('value' in result, 'the store answered get with something else');
    return result.value.value;
  }

  async wait(keys: readonly string[], timeoutMs?: number): Promise<void> {
    await this.#wait('wait', { wait: { keys: keys.map((key) => this.#key(key)) } }, timeoutMs);
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
    rejectAll(this.#waits, errorFor);
  }

  /**
   * Waits end, later calls are refused, and what else is under way is given a moment to be answered, awaited or not.
   * Idempotent. The session is closed by whoever opened it, afterwards.
   */
  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    rejectAll(this.#waits, (op) => this.#closedError(op));
    if (this.#others.size === 0) return;
    await new Promise<void>((resolve) => {
      const timer = systemClock.schedule(resolve, CLOSE_MS, true);
      this.#onAnswered = () => {
        if (this.#others.size > 0) return;
        timer.cancel();
        resolve();
      };
    });
    rejectAll(this.#others, (op) => this.#closedError(op));
  }

  #key(key: string): string {
    return userPrefix(this.#options.generation) + key;
  }

  #ask(name: string, operation: Operation, timeoutMs?: number): Promise<Result> {
    return this.#call(this.#others, name, operation, timeoutMs);
  }

  #wait(name: string, operation: Operation, timeoutMs?: number): Promise<Result> {
    if (this.#groupFailure !== undefined) return this.#look(name, operation, this.#groupFailure);
    return this.#call(this.#waits, name, operation, timeoutMs);
  }

  async #look(name: string, operation: Operation, failure: Error): Promise<Result> {
    try {
      return await this.#ask(name, operation, LOOK_MS);
    } catch (error) {
      // A timeout that names rank 0 says that the store itself is silent.
      if (!isLockstepError(error, 'LOCKSTEP_TIMEOUT') || error.context.ranks?.includes(0) === true) throw error;
      throw endedWaitError({ op: `store.${name}`, rank: this.#options.rank }, error.message, failure);
    }
  }

  #call(calls: Calls, name: string, operation: Operation, timeoutMs = this.#options.timeoutMs): Promise<Result> {
    const op = `store.${name}`;
    if (this.#closing !== undefined) return Promise.reject(this.#closedError(op));
    return new Promise<Result>((resolve, reject) => {
      calls.set(reject, op);
      this.#connection
        .request(name, operation, timeoutMs)
        .then(resolve, reject)
        .finally(() => {
          calls.delete(reject);
          this.#onAnswered();
        });
    });
  }

  #closedError(op: string): Error {
    return storeClosedError({ op, rank: this.#options.rank });
  }
}

function rejectAll(calls: Calls, errorFor: (op: string) => Error): void {
  for (const [reject, op] of [...calls]) reject(errorFor(op));
}
