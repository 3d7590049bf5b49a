/** Errors in the store's messages: code, text and the ranks that are the cause; stacks stay where they were made. */
import { fromWire } from '../../core/error-wire';
import { InternalError, isLockstepError, type LockstepError, type LockstepErrorCode } from '../../core/errors';
import type { Failure } from './proto';

/** What is not one of our errors is a bug of ours, and its text stays here. */
export function toFailure(thrown: unknown): Failure {
  if (!isLockstepError(thrown)) {
    return { code: 'LOCKSTEP_INTERNAL', message: 'store: internal error; its own log says more.', ranks: [] };
  }
  return { code: thrown.code, message: thrown.message, ranks: thrown.context.ranks ?? [] };
}

/** @param rank the rank that is told */
export function fromFailure(failure: Failure, op: string, rank: number): LockstepError {
  const error = fromWire({
    name: 'Error',
    message: failure.message,
    stack: null,
    code: failure.code as LockstepErrorCode,
    scope: null,
    rank,
    group: null,
    op,
    sequence: null,
    ranks: failure.ranks,
    globalRanks: null,
    cause: null,
    errors: null,
  });
  return isLockstepError(error) ? error : new InternalError(failure.message, { op, rank, cause: error });
}
