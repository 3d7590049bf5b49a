/** The job's key-value store, as a rank uses it. */
import { checkTimeout } from '../../core/deadline';
import { InvalidArgumentError } from '../../core/errors';
import { invariant } from '../../core/invariant';
import type { StoreConnection } from './store-connection';
import type { Operation, Result } from './proto';
import type { Compared } from './store-table';

export interface StoreCallOptions {
  /** Milliseconds; default: the client's. */
  readonly timeoutMs?: number | undefined;
}

/** Text is stored as UTF-8. */
export type StoreValue = string | Uint8Array;

/**
 * Keys and values that all ranks of a job share, for what is not worth a collective: small, and few.
 *
 * Every wait has a deadline, and a session that is lost is not made again: what the store held is lost with it.
 * Errors of every method: InvalidArgumentError for a mistake of this call (a value too large, a store that is full),
 * after which the store goes on; CollectiveTimeoutError; PeerLostError if the store's process is gone; ClosedError.
 */
export class StoreClient {
  readonly #connection: StoreConnection;
  readonly #timeoutMs: number;
  readonly #prefix: string;

  constructor(connection: StoreConnection, timeoutMs: number, prefix = '') {
    this.#connection = connection;
    this.#timeoutMs = timeoutMs;
    this.#prefix = prefix;
  }

  /** The same store, with 'name/' before every key. */
  prefix(name: string): StoreClient {
    return new StoreClient(this.#connection, this.#timeoutMs, `${this.#prefix}${name}/`);
  }

  /** The key's value; waits until it has one. */
  async get(key: string, options?: StoreCallOptions): Promise<Uint8Array> {
    const result = await this.#ask('get', { get: { key: this.#key(key) } }, options);
    invariant('value' in result, 'the store answered get with something else');
    return result.value.value;
  }

  /** Give the key a value, whatever it held. */
  async set(key: string, value: StoreValue, options?: StoreCallOptions): Promise<void> {
    await this.#ask('set', { set: { key: this.#key(key), value: bytesOf(value) } }, options);
  }

  /**
   * Add to the key's number, 0 where it has no value, and return the sum, which the key holds as decimal text.
   * @throws InvalidArgumentError if the key holds something else; only this call fails
   */
  async add(key: string, amount: number, options?: StoreCallOptions): Promise<number> {
    if (!Number.isSafeInteger(amount)) {
      throw new InvalidArgumentError(`store: add: expected a whole number as the amount, got ${String(amount)}.`);
    }
    const result = await this.#ask('add', { add: { key: this.#key(key), amount } }, options);
    invariant('number' in result, 'the store answered add with something else');
    return result.number;
  }

  /**
   * Set the key to `desired` if its value is `expected`; an empty `expected` also matches a key without a value.
   * @returns whether it was set, and what the key holds now (undefined: nothing)
   */
  async compareAndSet(
    key: string,
    expected: StoreValue,
    desired: StoreValue,
    options?: StoreCallOptions,
  ): Promise<Compared> {
    const operation = { key: this.#key(key), expected: bytesOf(expected), desired: bytesOf(desired) };
    const result = await this.#ask('compareAndSet', { compareAndSet: operation }, options);
    invariant('compared' in result, 'the store answered compareAndSet with something else');
    return { isSet: result.compared.isSet, value: result.compared.value };
  }

  /** Wait until all keys have values. */
  async wait(keys: readonly string[], options?: StoreCallOptions): Promise<void> {
    await this.#ask('wait', { wait: { keys: keys.map((key) => this.#key(key)) } }, options);
  }

  /** @returns true if the key had a value */
  async delete(key: string, options?: StoreCallOptions): Promise<boolean> {
    const result = await this.#ask('delete', { delete: { key: this.#key(key) } }, options);
    invariant('flag' in result, 'the store answered delete with something else');
    return result.flag;
  }

  /** How many keys with this prefix have values. */
  async numKeys(options?: StoreCallOptions): Promise<number> {
    const result = await this.#ask('numKeys', { numKeys: { prefix: this.#prefix } }, options);
    invariant('number' in result, 'the store answered numKeys with something else');
    return result.number;
  }

  #key(key: string): string {
    if (typeof key === 'string') return this.#prefix + key;
    throw new InvalidArgumentError(`store: expected a key, got ${typeof key}.`);
  }

  async #ask(op: string, operation: Operation, options: StoreCallOptions | undefined): Promise<Result> {
    return this.#connection.request(op, operation, checkTimeout(options?.timeoutMs, this.#timeoutMs));
  }
}

function bytesOf(value: StoreValue): Uint8Array {
  if (typeof value === 'string') return Buffer.from(value);
  if (Object.prototype.toString.call(value) === '[object Uint8Array]') return value;
  throw new InvalidArgumentError(`store: expected a string or a Uint8Array as the value, got ${typeof value}.`);
}
