/** The store's keys and values, in memory, and who waits for them. Knows nothing of connections. */
import { InvalidArgumentError } from '../../core/errors';

/** What a store may hold; a misbehaving rank must not take the machine's memory. */
export interface StoreLimits {
  readonly keyBytes: number;
  readonly valueBytes: number;
  readonly keys: number;
  /** Of all keys and values together. */
  readonly totalBytes: number;
}

const MIB = 1024 * 1024;

export const DEFAULT_STORE_LIMITS: StoreLimits = {
  keyBytes: 1024,
  valueBytes: MIB,
  keys: 100_000,
  totalBytes: 64 * MIB,
};

/** What compareAndSet did. */
export interface Compared {
  readonly isSet: boolean;
  /** What the key holds now; undefined where it holds nothing. */
  readonly value: Uint8Array | undefined;
}

/** Each method throws InvalidArgumentError for its caller's mistake, and changes nothing then. */
export class StoreTable {
  readonly #limits: StoreLimits;
  readonly #values = new Map<string, Uint8Array>();
  readonly #waiting = new Map<string, Set<() => void>>();
  #bytes = 0;

  constructor(limits: StoreLimits = DEFAULT_STORE_LIMITS) {
    this.#limits = limits;
  }

  get(key: string): Uint8Array | undefined {
    return this.#values.get(key);
  }

  set(key: string, value: Uint8Array): void {
    this.#checkRoom(key, value);
    this.#bytes += entryBytes(key, value) - this.#entryBytes(key);
    this.#values.set(key, value);
    const waiting = this.#waiting.get(key);
    this.#waiting.delete(key);
    for (const tell of waiting ?? []) tell();
  }

  /** The sum, which the key holds as decimal text from now on. A key without a value counts as 0. */
  add(key: string, amount: number): number {
    const before = this.#values.get(key);
    const sum = (before === undefined ? 0 : parseNumber(key, before)) + amount;
    if (!Number.isSafeInteger(sum)) {
      throw new InvalidArgumentError(`store: add(${quote(key)}, ${amount}) leaves the range of exact whole numbers.`);
    }
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  /** An empty `expected` also matches a key without a value. */
  compareAndSet(key: string, expected: Uint8Array, desired: Uint8Array): Compared {
    const before = this.#values.get(key);
    if (Buffer.compare(before ?? Buffer.alloc(0), expected) !== 0) return { isSet: false, value: before };
    this.set(key, desired);
    return { isSet: true, value: desired };
  }

  /** True if the key had a value. */
  delete(key: string): boolean {
    this.#bytes -= this.#entryBytes(key);
    return this.#values.delete(key);
  }

  /** Keys that begin with `prefix`. */
  count(prefix: string): number {
    if (prefix === '') return this.#values.size;
    let count = 0;
    for (const key of this.#values.keys()) if (key.startsWith(prefix)) count++;
    return count;
  }

  missing(keys: readonly string[]): string[] {
    return keys.filter((key) => !this.#values.has(key));
  }

  /** Call `tell` once, when all keys have values: now, or inside the `set` that gives the last one. Returns: give up. */
  whenPresent(keys: readonly string[], tell: () => void): () => void {
    for (const key of keys) this.#checkKey(key);
    let awaited: string | undefined;
    const look = (): void => {
      awaited = this.missing(keys)[0];
      if (awaited === undefined) return tell();
      const waiting = this.#waiting.get(awaited) ?? new Set();
      this.#waiting.set(awaited, waiting.add(look));
    };
    look();
    return () => {
      if (awaited === undefined) return;
      const waiting = this.#waiting.get(awaited);
      waiting?.delete(look);
      if (waiting?.size === 0) this.#waiting.delete(awaited);
    };
  }

  clear(): void {
    this.#values.clear();
    this.#waiting.clear();
    this.#bytes = 0;
  }

  #entryBytes(key: string): number {
    const value = this.#values.get(key);
    return value === undefined ? 0 : entryBytes(key, value);
  }

  #checkKey(key: string): void {
    const bytes = Buffer.byteLength(key);
    if (bytes <= this.#limits.keyBytes) return;
    throw new InvalidArgumentError(`store: a key of ${bytes} bytes; at most ${this.#limits.keyBytes} are allowed.`);
  }

  #checkRoom(key: string, value: Uint8Array): void {
    this.#checkKey(key);
    const { valueBytes, keys, totalBytes } = this.#limits;
    if (value.byteLength > valueBytes) {
      throw new InvalidArgumentError(
        `store: the value for ${quote(key)} has ${value.byteLength} bytes; at most ${valueBytes} are allowed. Send large data by a collective.`,
      );
    }
    if (!this.#values.has(key) && this.#values.size >= keys) {
      throw new InvalidArgumentError(
        `store: it holds ${keys} keys, the most allowed. Delete what is no longer needed.`,
      );
    }
    const bytes = this.#bytes + entryBytes(key, value) - this.#entryBytes(key);
    if (bytes > totalBytes) {
      throw new InvalidArgumentError(
        `store: with the value for ${quote(key)} it would hold ${bytes} bytes; at most ${totalBytes} are allowed. Delete what is no longer needed.`,
      );
    }
  }
}

function entryBytes(key: string, value: Uint8Array): number {
  return Buffer.byteLength(key) + value.byteLength;
}

function parseNumber(key: string, value: Uint8Array): number {
  const text = Buffer.from(value).toString();
  const number = /^-?\d{1,16}$/.test(text) ? Number(text) : NaN;
  if (Number.isSafeInteger(number)) return number;
  throw new InvalidArgumentError(
    `store: add: ${quote(key)} holds ${quote(text)}, which is not a whole number. Only keys that add() or a decimal text made can be added to.`,
  );
}

/** A key or value for a message: printable, and not longer than a line. */
export function quote(text: string): string {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}...` : text);
}
