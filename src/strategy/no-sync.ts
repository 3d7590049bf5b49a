import { ContextKey } from '../core/context';

/**
 * The reducers whose `noSync(fn)` this asynchronous context runs in: their backward keeps gradients on this rank, and
 * steps that use them are meant. Other modules, and other ranks, go on averaging. See [Note: ambient state].
 */
const localReducersKey = new ContextKey<readonly object[]>([]);

/** True inside `noSync` of `reducer`. */
export function isInNoSync(reducer: object): boolean {
  return localReducersKey.get().includes(reducer);
}

/** Run `fn` inside `noSync` of `reducer`. */
export function runInNoSync<R>(reducer: object, fn: () => R): R {
  return localReducersKey.run([...localReducersKey.get(), reducer], fn);
}
