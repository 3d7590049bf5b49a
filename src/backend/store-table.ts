/** The store's keys and values, in memory, and who waits for them. Knows nothing of connections. */
import { InvalidArgumentError } from '../core/errors';
import type { CompareAndSetResult } from './backend-store';

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

/** Keys of one `wait`; far below what would make a request too long. */
export const MAX_AWAITED_KEYS = 1000;

/** Calls of one rank that may wait for keys at a time; those for keys that are there, and all other calls, go on. */
export const MAX_WAITS_PER_RANK = 1024;

/** Why no other call of a rank may wait, where so many wait already; undefined: one may. */
export function waitRefusal(numWaits: number): Error | undefined {
  if (numWaits < MAX_WAITS_PER_RANK) return undefined;
  return new InvalidArgumentError(
    `${numWaits} calls of this rank wait in the store already, the most allowed. Await several keys in one call of wait(), which takes ${MAX_AWAITED_KEYS}.`,
  );
}

/** Each method throws InvalidArgumentError for its caller's mistake, and changes nothing then. */
export class StoreTable {
  readonly #limits: StoreLimits;
  readonly #nameOf: (key: string) => string;
  readonly #values = new Map<string, Uint8Array>();
  readonly #waiting = new Map<string, Set<() => void>>();
  #bytes = 0;

  /** @param nameOf the key as its user knows it: for messages, and what counts towards the limits */
  constructor(limits: StoreLimits = DEFAULT_STORE_LIMITS, nameOf: (key: string) => string = (key) => key) {
    this.#limits = limits;
    this.#nameOf = nameOf;
  }

  get(key: string): Uint8Array | undefined {
    return this.#values.get(key);
  }

  set(key: string, value: Uint8Array): void {
    this.#checkRoom(key, value);
    this.#bytes += this.#bytesWith(key, value) - this.#entryBytes(key);
    this.#values.set(key, value);
    const waiting = this.#waiting.get(key);
    this.#waiting.delete(key);
    for (const tell of waiting ?? []) tell();
  }

  /** The sum, which the key holds as decimal text from now on. A key without a value counts as 0. */
  add(key: string, amount: number): number {
    const before = this.#values.get(key);
    const sum = (before === undefined ? 0 : parseNumber(this.#quote(key), before)) + amount;
    if (!Number.isSafeInteger(sum)) {
      throw new InvalidArgumentError(
        `${this.#quote(key)} would leave the range of exact whole numbers by the amount ${amount}.`,
      );
    }
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  /** @param expected undefined: the key has no value */
  compareAndSet(key: string, expected: Uint8Array | undefined, desired: Uint8Array): CompareAndSetResult {
    const before = this.#values.get(key);
    if (!isSame(before, expected)) return { isSet: false, value: before };
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

  /** The keys among these that have no value, for a message. */
  describeMissing(keys: readonly string[]): string {
    const missing = this.missing(keys);
    const named = missing.slice(0, MAX_NAMED_KEYS).map((key) => this.#quote(key));
    const numMore = missing.length - named.length;
    return numMore > 0 ? `${named.join(', ')} and ${numMore} more` : named.join(', ');
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
    return value === undefined ? 0 : this.#bytesWith(key, value);
  }

  #bytesWith(key: string, value: Uint8Array): number {
    return Buffer.byteLength(this.#nameOf(key)) + value.byteLength;
  }

  #quote(key: string): string {
    return quote(this.#nameOf(key));
  }

  #checkKey(key: string): void {
    checkKeySize(this.#nameOf(key), this.#limits);
  }

  #checkRoom(key: string, value: Uint8Array): void {
    this.#checkKey(key);
    checkValueSize(this.#quote(key), value, this.#limits);
    const { keys, totalBytes } = this.#limits;
    if (!this.#values.has(key) && this.#values.size >= keys) {
      throw new InvalidArgumentError(
        `the store holds ${keys} keys, the most allowed. Delete what is no longer needed.`,
      );
    }
    const bytes = this.#bytes + this.#bytesWith(key, value) - this.#entryBytes(key);
    if (bytes > totalBytes) {
      throw new InvalidArgumentError(
        `with the value for ${this.#quote(key)} the store would hold ${bytes} bytes; at most ${totalBytes} are allowed. Delete what is no longer needed.`,
      );
    }
  }
}

/** @throws InvalidArgumentError if the key is too long */
export function checkKeySize(key: string, { keyBytes }: StoreLimits = DEFAULT_STORE_LIMITS): void {
  const bytes = Buffer.byteLength(key);
  if (bytes <= keyBytes) return;
  throw new InvalidArgumentError(`a key of ${bytes} bytes; at most ${keyBytes} are allowed.`);
}

/** @throws InvalidArgumentError if the value is too long; `quotedKey` is for the message */
export function checkValueSize(
  quotedKey: string,
  value: Uint8Array,
  { valueBytes }: StoreLimits = DEFAULT_STORE_LIMITS,
): void {
  if (value.byteLength <= valueBytes) return;
  throw new InvalidArgumentError(
    `the value for ${quotedKey} has ${value.byteLength} bytes; at most ${valueBytes} are allowed. Send large data by a collective.`,
  );
}

/** More keys than this are only counted in a message. */
const MAX_NAMED_KEYS = 8;

function isSame(a: Uint8Array | undefined, b: Uint8Array | undefined): boolean {
  return a === undefined || b === undefined ? a === b : Buffer.compare(a, b) === 0;
}

function parseNumber(quotedKey: string, value: Uint8Array): number {
  const text = Buffer.from(value).toString();
  const number = /^-?\d{1,16}$/.test(text) ? Number(text) : NaN;
  if (Number.isSafeInteger(number)) return number;
  throw new InvalidArgumentError(
    `${quotedKey} holds ${quote(text)}, which is not a whole number. Only keys that add() or a decimal text made can be added to.`,
  );
}

/** A key or value for a message: printable, and not longer than a line. */
export function quote(text: string): string {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}...` : text);
}
