import { z } from 'zod';
import type { BackendStore, CompareAndSetResult } from '../backend/backend-store';
import { MAX_AWAITED_KEYS, checkKeySize, checkValueSize, quote } from '../backend/store-table';
import { isDetached } from '../core/dtype';
import { CollectiveTimeoutError, InvalidArgumentError, isLockstepError, type LockstepError } from '../core/errors';
import { kept } from '../core/kept-promise';
import { parseOptions } from '../core/options';
import type { Store, StoreCallOptions, StoreValue } from './store';

const schema = z.strictObject({ timeoutMs: z.number().positive().optional() });

/** A world's store over that of its backend: what is passed is checked and copied here. */
export class WorldStore implements Store {
  readonly #backend: BackendStore;
  readonly #rank: number;
  readonly #prefix: string;

  constructor(backend: BackendStore, rank: number, prefix = '') {
    this.#backend = backend;
    this.#rank = rank;
    this.#prefix = prefix;
  }

  /** May be kept, as a Work ([Note: kept promises]): what ends it besides its own deadline is heard of elsewhere too. */
  get(key: string, options?: StoreCallOptions): Promise<Uint8Array> {
    const value = this.#call('get', options, (timeoutMs) => this.#backend.get(this.#key(key), timeoutMs));
    return kept(value.then(copyOf));
  }

  /** May be kept, as `get`. */
  wait(keys: readonly string[], options?: StoreCallOptions): Promise<void> {
    return kept(this.#call('wait', options, (timeoutMs) => this.#backend.wait(this.#keys(keys), timeoutMs)));
  }

  set(key: string, value: StoreValue, options?: StoreCallOptions): Promise<void> {
    return this.#call('set', options, (timeoutMs) => {
      const fullKey = this.#key(key);
      return this.#backend.set(fullKey, checkedBytes(fullKey, value), timeoutMs);
    });
  }

  add(key: string, amount: number, options?: StoreCallOptions): Promise<number> {
    return this.#call('add', options, (timeoutMs) => {
      const fullKey = this.#key(key);
      if (Number.isSafeInteger(amount)) return this.#backend.add(fullKey, amount, timeoutMs);
      throw new InvalidArgumentError(
        `expected a whole number as the amount for ${quote(fullKey)}, got ${describe(amount)}.`,
      );
    });
  }

  async compareAndSet(
    key: string,
    expected: StoreValue | undefined,
    desired: StoreValue,
    options?: StoreCallOptions,
  ): Promise<CompareAndSetResult> {
    const { isSet, value } = await this.#call('compareAndSet', options, (timeoutMs) => {
      const fullKey = this.#key(key);
      const before = expected === undefined ? undefined : checkedBytes(fullKey, expected);
      return this.#backend.compareAndSet(fullKey, before, checkedBytes(fullKey, desired), timeoutMs);
    });
    return { isSet, value: value === undefined ? undefined : copyOf(value) };
  }

  delete(key: string, options?: StoreCallOptions): Promise<boolean> {
    return this.#call('delete', options, (timeoutMs) => this.#backend.delete(this.#key(key), timeoutMs));
  }

  numKeys(options?: StoreCallOptions): Promise<number> {
    return this.#call('numKeys', options, (timeoutMs) => this.#backend.numKeys(this.#prefix, timeoutMs));
  }

  prefix(name: string): Store {
    try {
      if (typeof name !== 'string' || name === '') {
        throw new InvalidArgumentError(`expected a name, got ${describe(name)}.`);
      }
      return new WorldStore(this.#backend, this.#rank, this.#full(`${name}/`));
    } catch (thrown) {
      throw this.#placed('store.prefix', thrown);
    }
  }

  async #call<R>(
    name: string,
    options: StoreCallOptions | undefined,
    run: (timeoutMs: number | undefined) => Promise<R>,
  ): Promise<R> {
    const op = `store.${name}`;
    const { timeoutMs } = parseOptions(schema, options, `${op} on rank ${this.#rank}`);
    try {
      return await run(timeoutMs);
    } catch (thrown) {
      throw this.#placed(op, thrown);
    }
  }

  /** The same error, saying which call of which rank it was; those that are about more than the call say so themselves. */
  #placed(op: string, thrown: unknown): unknown {
    if (!isLockstepError(thrown) || thrown.context.group !== undefined) return thrown;
    const PlacedError = placedErrors[thrown.code as keyof typeof placedErrors] as ErrorClass | undefined;
    if (PlacedError === undefined) return thrown;
    const context = { ...thrown.context, op, rank: this.#rank };
    return new PlacedError(`${op} on rank ${this.#rank}: ${thrown.message}`, context);
  }

  #keys(keys: readonly string[]): string[] {
    if (!Array.isArray(keys)) throw new InvalidArgumentError(`expected a list of keys, got ${describe(keys)}.`);
    if (keys.length <= MAX_AWAITED_KEYS) return keys.map((key: string) => this.#key(key));
    throw new InvalidArgumentError(`${keys.length} keys; at most ${MAX_AWAITED_KEYS} can be awaited in one call.`);
  }

  #key(key: string): string {
    if (typeof key !== 'string') throw new InvalidArgumentError(`expected a key, got ${describe(key)}.`);
    return this.#full(key);
  }

  #full(key: string): string {
    const fullKey = this.#prefix + key;
    // As UTF-8 it would be the same as other keys.
    if (/\p{Surrogate}/u.test(fullKey)) {
      throw new InvalidArgumentError(`the key ${quote(fullKey)} holds half a surrogate pair, which is no text.`);
    }
    checkKeySize(fullKey);
    return fullKey;
  }
}

type ErrorClass = new (message: string, context: LockstepError['context']) => LockstepError;

const placedErrors = {
  LOCKSTEP_INVALID_ARGUMENT: InvalidArgumentError,
  LOCKSTEP_TIMEOUT: CollectiveTimeoutError,
} as const;

/** A copy, as plain as the user's own arrays, whatever class the backend uses. */
function copyOf(bytes: Uint8Array): Uint8Array {
  return new Uint8Array(bytes);
}

/** The value's bytes, copied. @throws InvalidArgumentError */
function checkedBytes(key: string, value: StoreValue): Uint8Array {
  const isBytes = Object.prototype.toString.call(value) === '[object Uint8Array]';
  if (typeof value !== 'string' && !isBytes) {
    throw new InvalidArgumentError(`expected a string or a Uint8Array for ${quote(key)}, got ${describe(value)}.`);
  }
  if (typeof value !== 'string' && isDetached(value)) {
    throw new InvalidArgumentError(`the array for ${quote(key)} is detached: its memory was transferred away.`);
  }
  const bytes = typeof value === 'string' ? Buffer.from(value) : value;
  checkValueSize(quote(key), bytes);
  return copyOf(bytes);
}

function describe(value: unknown): string {
  if (typeof value === 'string') return quote(value);
  return typeof value === 'number' || value === null ? String(value) : typeof value;
}
