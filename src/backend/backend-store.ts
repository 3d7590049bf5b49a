/** The keys and values that the ranks of a world share, as a backend reaches them. */
import { ClosedError, type ErrorContext } from '../core/errors';

/** What compareAndSet did. */
export interface CompareAndSetResult {
  readonly isSet: boolean;
  /** What the key holds now; undefined where it holds nothing. */
  readonly value: Uint8Array | undefined;
}

/**
 * One rank's end of its world's store. `process-group/store.ts` is its public face: it checks keys, values and options
 * before they come here, and says in every message which call of which rank failed.
 *
 * Ownership: bytes given are the store's from then on, and bytes returned stay its own; nobody changes either. A rank's
 * calls take effect in the order in which they are made. `timeoutMs` is checked; undefined: the world's.
 *
 * [Note: waits in the store] Ranks wait in `get` and `wait` alone. A wait ends when the group of all ranks ends: the rank
 * that would have set the key may be what ended it. Later waits find what is there, and fail where nothing is; the other
 * calls go on until the world is closed.
 */
export interface BackendStore {
  get(key: string, timeoutMs?: number): Promise<Uint8Array>;
  wait(keys: readonly string[], timeoutMs?: number): Promise<void>;
  set(key: string, value: Uint8Array, timeoutMs?: number): Promise<void>;
  add(key: string, amount: number, timeoutMs?: number): Promise<number>;
  /** @param expected undefined: the key has no value */
  compareAndSet(
    key: string,
    expected: Uint8Array | undefined,
    desired: Uint8Array,
    timeoutMs?: number,
  ): Promise<CompareAndSetResult>;
  delete(key: string, timeoutMs?: number): Promise<boolean>;
  /** Keys that begin with `prefix`. */
  numKeys(prefix: string, timeoutMs?: number): Promise<number>;
}

/** The refusal of a call on a store whose world this rank has closed. */
export function storeClosedError(context: ErrorContext): Error {
  return new ClosedError(
    `${context.op} on rank ${context.rank}: this rank has closed its world, and its store with it.`,
    context,
  );
}

/** The refusal of a wait that nobody may be left to end. @param missing the keys without a value, for the message */
export function endedWaitError(context: ErrorContext, missing: string, failure: Error): Error {
  return new ClosedError(
    `${context.op} on rank ${context.rank}: no value for ${missing}, and the group of all ranks has failed, so that it may never come. The group's first failure: ${failure.message}`,
    { ...context, cause: failure },
  );
}

/** Ends the message of a wait whose time is over. */
export const LATE_KEY_ADVICE =
  'Look for a misspelt key or prefix, or a rank that never sets it; if that rank is only slow, pass a larger timeoutMs.';
