/** Calls in flight on leaves. A forgotten `await` is found here: the next call sees that the last one is still at work. */
import { noteCallInFlight } from '../core/calls-in-flight';
import { InvalidArgumentError } from '../core/errors';
import { describeTensor } from './describe';
import type { Tensor } from './tensor';

/** The refusal of `operation` because `pending`, such as 'backward()', is still at work on `leaf`. */
export function notAwaited(operation: string, pending: string, leaf: Tensor): InvalidArgumentError {
  return new InvalidArgumentError(
    `${operation}: the previous ${pending} was not awaited to its end and is still at work on ${describeTensor(leaf)}. Write \`await\` before it.`,
  );
}

/**
 * Mark `leaves` as being changed by `call`, such as 'optimizer.step()', until the returned function is called: meanwhile a backward()
 * or another marked call on one of them is refused.
 *
 * @throws InvalidArgumentError, with nothing marked, if a backward() or a marked call is still at work on one of them
 */
export function markPendingCall(leaves: readonly Tensor[], call: string): () => void {
  for (const leaf of leaves) assertNoPendingCall(leaf, call);
  for (const { leaf } of leaves) leaf.pendingCall = call;
  const isOver = noteCallInFlight(call);
  return () => {
    isOver();
    for (const { leaf } of leaves) leaf.pendingCall = undefined;
  };
}

/** @throws InvalidArgumentError, naming `operation`, if a backward() or a marked call is still at work on `leaf` */
export function assertNoPendingCall(leaf: Tensor, operation: string): void {
  const { pendingBackward, pendingCall } = leaf.leaf;
  const pending = pendingBackward === undefined ? pendingCall : 'backward()';
  if (pending !== undefined) throw notAwaited(operation, pending, leaf);
}
