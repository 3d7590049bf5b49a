/**
 * Ambient state, per asynchronous context.
 *
 * [Note: ambient state] Mock ranks interleave on one event loop, so anything kept in a module variable (gradient
 * mode, the memory account, the current rank) leaks from one rank into another at every `await`. It lives here
 * instead, in the one AsyncLocalStorage. A look-up costs about 7 ns: do it once per operator, never per element.
 */
import { AsyncLocalStorage } from 'node:async_hooks';

/** Values by key number; immutable, a change makes a new frame. */
type Frame = readonly unknown[];

const storage = new AsyncLocalStorage<Frame>();
const EMPTY_FRAME: Frame = [];
let keyCount = 0;

/** One piece of ambient state. Make keys at module level; each costs one slot of a frame. */
export class ContextKey<T> {
  readonly #index = keyCount++;
  readonly #initial: T;

  constructor(initial: T) {
    this.#initial = initial;
  }

  /** The value in this asynchronous context, or the initial one outside any `run`. */
  get(): T {
    const frame = storage.getStore();
    const value = frame === undefined ? undefined : frame[this.#index];
    return value === undefined ? this.#initial : (value as T);
  }

  /** Run `fn`, and everything that it starts and awaits, with `value`; returns what `fn` returns. */
  run<R>(value: T, fn: () => R): R {
    const frame = [...(storage.getStore() ?? EMPTY_FRAME)];
    frame[this.#index] = value;
    return storage.run(frame, fn);
  }
}

/** `fn`, run with the ambient state of this moment wherever it is called from. */
export function bindToContext<A extends readonly unknown[], R>(fn: (...args: A) => R): (...args: A) => R {
  const frame = storage.getStore();
  return (...args) => (frame === undefined ? storage.exit(() => fn(...args)) : storage.run(frame, () => fn(...args)));
}

/** Run `fn` outside every ambient state, as if called from the top of a program. */
export function runDetached<R>(fn: () => R): R {
  return storage.exit(fn);
}
