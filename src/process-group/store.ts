import type { CompareAndSetResult } from '../backend/backend-store';

/** Options of a call on the store. */
export interface StoreCallOptions {
  /** Milliseconds for the whole call; default: the world's. */
  readonly timeoutMs?: number | undefined;
}

/** Bytes, at most 1 MiB; text is stored as UTF-8. */
export type StoreValue = string | Uint8Array;

/**
 * Keys and values that all ranks of a world share: for what is small and not worth a collective, as who leads, where a
 * file is, how many are done. `world.store` is one.
 *
 * It is linearizable: every call takes effect at one moment, in one order that all ranks see, and a rank's own calls in
 * the order in which they are made. Values are copied: arrays passed may be changed at once, arrays returned are the
 * caller's own. Rank 0 serves it (or `lockstep store`), in memory and for this start of the job alone: when rank 0 closes
 * its world the store is gone for all, so let the ranks meet in a barrier before they close.
 *
 * Limits: keys of 1 KiB (UTF-8, prefixes included) and values of 1 MiB; 100,000 keys and 64 MiB of them in all; of
 * each rank 1024 calls that wait at a time.
 *
 * Errors of every method, of which none ends the store or a group:
 * @throws InvalidArgumentError for a mistake of this call: a key or value that is too long or of another type, a store
 *   that is full; nothing has changed then
 * @throws CollectiveTimeoutError naming the keys that nobody set in time, and the rank that waited for them. Of other
 *   calls than `get` and `wait`: the process that serves the store did not answer, and may or may not have done it
 * @throws PeerLostError naming rank 0 if the process that serves the store is gone
 * @throws ClosedError after `world.close()`, for what waits then too
 *
 * And of `get` and `wait`, which end with the group of all ranks, since the rank that would have set the key may be what
 * ended it: what ended it, as PeerLostError naming a rank that was lost, or later ClosedError with that as its cause; and on
 * the mock DeadlockError, at once, if every rank that could set the key has returned or waits itself.
 */
export interface Store {
  /** A copy of the key's value; waits until it has one. */
  get(key: string, options?: StoreCallOptions): Promise<Uint8Array>;

  /** Wait until all keys have values, at the same time; at most 1000 keys. */
  wait(keys: readonly string[], options?: StoreCallOptions): Promise<void>;

  /** Give the key a value, whatever it held. */
  set(key: string, value: StoreValue, options?: StoreCallOptions): Promise<void>;

  /**
   * Add a whole number to that of the key, 0 where it has no value, and return the sum. The key holds it as decimal text.
   * @throws InvalidArgumentError if the key holds something else, or the sum is no exact whole number (beyond 2^53 - 1)
   */
  add(key: string, amount: number, options?: StoreCallOptions): Promise<number>;

  /**
   * Set the key to `desired` if its value is `expected`; undefined: if it has none.
   * @returns whether it was set, and a copy of what the key holds now
   */
  compareAndSet(
    key: string,
    expected: StoreValue | undefined,
    desired: StoreValue,
    options?: StoreCallOptions,
  ): Promise<CompareAndSetResult>;

  /** Take the key's value away. @returns true if it had one */
  delete(key: string, options?: StoreCallOptions): Promise<boolean>;

  /** How many keys of this prefix have values; prefixes of prefixes count. */
  numKeys(options?: StoreCallOptions): Promise<number>;

  /** The same store, with `name/` before every key. */
  prefix(name: string): Store;
}
