import { ContextKey } from '../core/context';
import type { Tensor } from './tensor';

/** Is shown every input that requires a gradient, of operators that would be recorded if recording were on. */
export type GradientObserver = (input: Tensor) => void;

const gradientMode = new ContextKey<boolean | GradientObserver>(true);

/** Whether operators record what backward needs, in this asynchronous context. */
export function isGradEnabled(): boolean {
  return gradientMode.get() === true;
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

/** `noGrad` that tells what a recording would have held on to: activation checkpointing learns which leaves `fn` uses. */
export function observeGrad<R>(observer: GradientObserver, fn: () => R): R {
  return gradientMode.run(observer, fn);
}

/** Show the inputs of an operator to the observer of this context, if there is one. @internal */
export function showToObserver(inputs: readonly (Tensor | undefined)[]): void {
  const observer = gradientMode.get();
  if (typeof observer === 'boolean') return;
  for (const input of inputs) if (input?.requiresGrad === true) observer(input);
}
