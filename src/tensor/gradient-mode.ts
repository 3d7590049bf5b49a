import { ContextKey } from '../core/context';

const gradientMode = new ContextKey<boolean>(true);

/** Whether operators record what backward needs, in this asynchronous context. */
export function isGradEnabled(): boolean {
  return gradientMode.get();
}

/**
 * Run `fn` without recording, so that its results need no gradient and hold no graph; returns what `fn` returns.
 * An async `fn` keeps the mode over its awaits, and what interleaves with it is not affected.
 */
export function noGrad<R>(fn: () => R): R {
  return gradientMode.run(false, fn);
}

/** Run `fn` with recording, also inside `noGrad`; returns what `fn` returns. */
export function enableGrad<R>(fn: () => R): R {
  return gradientMode.run(true, fn);
}
