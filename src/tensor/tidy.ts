/** Scopes that dispose of the tensors made in them. */
import { ContextKey } from '../core/context';
import type { Tensor } from './tensor';

class TidyScope {
  readonly parent: TidyScope | undefined;
  readonly tensors = new Set<Tensor>();
  #isClosed = false;

  constructor(parent: TidyScope | undefined) {
    this.parent = parent;
  }

  /** This scope, or the innermost one around it that is still open. */
  get open(): TidyScope | undefined {
    return this.#isClosed ? this.parent?.open : this;
  }

  add(tensor: Tensor): void {
    this.tensors.add(tensor);
  }

  forget(tensor: Tensor): void {
    this.tensors.delete(tensor);
  }

  /** Close without disposing of anything: all passes to the scope around this one. */
  handOver(): void {
    this.#isClosed = true;
    const heir = this.parent?.open;
    if (heir !== undefined) for (const tensor of this.tensors) heir.add(tensor);
  }

  /** Dispose of everything but `returned`, which passes to the scope around this one. */
  close(returned: unknown): void {
    this.#isClosed = true;
    const kept = new Set<unknown>();
    collect(returned, kept);
    for (const tensor of this.tensors) {
      if (kept.has(tensor)) this.parent?.open?.add(tensor);
      else tensor.dispose();
    }
    this.tensors.clear();
  }
}

/** Run `fn` and say which tensors were made inside; they stay under the scope around it. */
export async function collectMade<T>(
  fn: () => Promise<T>,
): Promise<{ readonly result: T; readonly made: ReadonlySet<Tensor> }> {
  const scope = new TidyScope(scopeKey.get()?.open);
  try {
    const result = await scopeKey.run(scope, fn);
    return { result, made: scope.tensors };
  } finally {
    scope.handOver();
  }
}

const scopeKey = new ContextKey<TidyScope | undefined>(undefined);

/** Every object that can be reached from `value` through arrays, Maps, Sets and enumerable properties. */
function collect(value: unknown, seen: Set<unknown>): void {
  if (typeof value !== 'object' || value === null || seen.has(value) || ArrayBuffer.isView(value)) return;
  seen.add(value);
  const isIterable = Array.isArray(value) || value instanceof Map || value instanceof Set;
  for (const part of isIterable ? (value as Iterable<unknown>) : Object.values(value)) collect(part, seen);
}

/** Put a new tensor under the scope of this context. */
export function trackForTidy(tensor: Tensor): void {
  scopeKey.get()?.open?.add(tensor);
}

/**
 * Take a tensor out of every scope of this context, so that it outlives them. For state that is made at first use, such
 * as an optimizer's. @returns the tensor
 */
export function keep<T extends Tensor>(tensor: T): T {
  for (let scope = scopeKey.get(); scope !== undefined; scope = scope.parent) scope.forget(tensor);
  return tensor;
}

/**
 * Run `fn` and dispose of every tensor made inside, unless it is in what `fn` returns (in arrays, Maps and object
 * properties too), is the gradient of a leaf, or is a Parameter. Sync and async functions; returns what `fn` returns.
 *
 * What backward needs is kept until backward has run, whether its tensors are disposed of or not.
 */
export function tidy<R>(fn: () => R): R {
  const scope = new TidyScope(scopeKey.get()?.open);
  let result: R;
  try {
    result = scopeKey.run(scope, fn);
  } catch (error) {
    scope.close(undefined);
    throw error;
  }
  if (!isPromise(result)) {
    scope.close(result);
    return result;
  }
  return closeAfter(scope, result) as R;
}

async function closeAfter<T>(scope: TidyScope, promise: PromiseLike<T>): Promise<T> {
  try {
    const result = await promise;
    scope.close(result);
    return result;
  } catch (error) {
    scope.close(undefined);
    throw error;
  }
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && typeof (value as { then?: unknown }).then === 'function';
}
