import { EventEmitter } from 'eventemitter3';
import { bindToContext } from '../core/context';
import { InvalidArgumentError, asError } from '../core/errors';
import type { Logger } from '../core/logger';

/** Event names, and the listener that each takes: `{ stepEnd: (event: StepEnd) => void }`. */
type EventMap<Events> = { [K in keyof Events]: (event: never) => void };

type AnyListener = (event: unknown) => unknown;

/**
 * Listeners by event name, none of which can disturb the code that emits: what one throws (or rejects with) is
 * logged, and the others are still called. A listener runs with the ambient state of the moment it was added in, so
 * in a mock world it always runs as the rank that added it.
 */
export class GuardedEmitter<Events extends EventMap<Events>> {
  readonly #emitter = new EventEmitter<string>();
  readonly #names: readonly string[];
  readonly #logger: Logger;
  /** What was handed to the emitter for each listener, by event, so that `off` finds it. */
  readonly #guards = new Map<string, WeakMap<object, AnyListener>>();

  /** @param names all events there are; any other name is refused, so that a misspelt one is not waited for in vain */
  constructor(names: readonly (keyof Events & string)[], logger: Logger) {
    this.#names = names;
    this.#logger = logger;
  }

  /** @throws InvalidArgumentError if there is no such event, or `listener` is not a function */
  on<K extends keyof Events & string>(name: K, listener: Events[K]): void {
    this.#emitter.on(name, this.#guard(name, listener));
  }

  /** Like `on`, for the next event only. */
  once<K extends keyof Events & string>(name: K, listener: Events[K]): void {
    this.#emitter.once(name, this.#guard(name, listener));
  }

  /** Remove `listener`, however often it was added. */
  off<K extends keyof Events & string>(name: K, listener: Events[K]): void {
    this.#checkName(name);
    const guard = this.#guards.get(name)?.get(listener);
    if (guard === undefined) return;
    this.#emitter.off(name, guard);
    this.#guards.get(name)?.delete(listener);
  }

  /** Ask before making an event, so that one that nobody listens to costs nothing. */
  hasListener(name: keyof Events & string): boolean {
    return this.#emitter.listenerCount(name) > 0;
  }

  emit<K extends keyof Events & string>(name: K, event: Parameters<Events[K]>[0]): void {
    this.#emitter.emit(name, event);
  }

  #guard(name: string, listener: (event: never) => void): AnyListener {
    this.#checkName(name);
    if (typeof listener !== 'function') {
      throw new InvalidArgumentError(`listener of '${name}': expected a function, got ${typeof listener}.`);
    }
    const guards = this.#guards.get(name) ?? new WeakMap<object, AnyListener>();
    this.#guards.set(name, guards);
    const guard = guards.get(listener) ?? this.#makeGuard(name, listener as AnyListener);
    guards.set(listener, guard);
    return guard;
  }

  #makeGuard(name: string, listener: AnyListener): AnyListener {
    const log = (thrown: unknown): void => {
      const error = asError(thrown);
      this.#logger.error(`a listener of '${name}' failed; nothing else did: ${error.stack ?? error.message}`);
    };
    return bindToContext((event: unknown): void => {
      try {
        const result = listener(event);
        if (isThenable(result)) result.then(undefined, log);
      } catch (thrown) {
        log(thrown);
      }
    });
  }

  #checkName(name: string): void {
    if (this.#names.includes(name)) return;
    throw new InvalidArgumentError(`there is no event '${name}'; the events are ${this.#names.join(', ')}.`);
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as { readonly then?: unknown } | null | undefined)?.then === 'function';
}
