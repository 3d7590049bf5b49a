/**
 * Every error that Lockstep raises, classified by what the caller can still use afterwards.
 *
 * Match on `code` (see `isLockstepError`), not on the class: classes do not survive a second copy of the package,
 * a worker or a Jest realm. The wire form for other processes is in error-wire.ts.
 */
import { inspect, types } from 'node:util';

/** What is still usable: the whole group (only this call failed), other groups, or nothing in this process. */
export type ErrorScope = 'call' | 'group' | 'process';

export type LockstepErrorCode =
  | 'LOCKSTEP_INVALID_ARGUMENT'
  | 'LOCKSTEP_NOT_IN_GROUP'
  | 'LOCKSTEP_UNSUPPORTED'
  | 'LOCKSTEP_UNAVAILABLE'
  | 'LOCKSTEP_CLOSED'
  | 'LOCKSTEP_CHECKPOINT'
  | 'LOCKSTEP_MISMATCH'
  | 'LOCKSTEP_TIMEOUT'
  | 'LOCKSTEP_DEADLOCK'
  | 'LOCKSTEP_PEER_LOST'
  | 'LOCKSTEP_WORLD'
  | 'LOCKSTEP_NATIVE'
  | 'LOCKSTEP_INTERNAL';

/**
 * Where it happened. `rank` is the rank in `group`; `ranks` are the ranks that the message names as the cause, also as
 * numbered in `group` (in the world where there is none); `globalRanks` are the same ranks, numbered in the world.
 */
export interface ErrorContext {
  readonly rank?: number | undefined;
  readonly group?: string | undefined;
  readonly op?: string | undefined;
  readonly sequence?: number | undefined;
  readonly ranks?: readonly number[] | undefined;
  readonly globalRanks?: readonly number[] | undefined;
  readonly cause?: unknown;
}

const BRAND = Symbol.for('lockstep.error');

export abstract class LockstepError extends Error {
  abstract override readonly name: string;
  abstract readonly code: LockstepErrorCode;
  abstract readonly scope: ErrorScope;
  /** Not enumerable: a console shows the message, which says as much, and the cause once. */
  declare readonly context: ErrorContext;

  constructor(message: string, context: ErrorContext = {}) {
    super(message, context.cause === undefined ? undefined : { cause: context.cause });
    const { group, ranks, globalRanks = ranks } = context;
    const isOfWorld = group === undefined && ranks !== undefined;
    Object.defineProperty(this, 'context', { value: isOfWorld ? { ...context, globalRanks } : context });
    Object.defineProperty(this, BRAND, { value: true });
  }
}

/** A local check failed before anything was sent; the group lives on. */
export class InvalidArgumentError extends LockstepError {
  override readonly name = 'InvalidArgumentError';
  override readonly code = 'LOCKSTEP_INVALID_ARGUMENT';
  override readonly scope = 'call';
}

/** A collective was called on a group that this rank is not a member of. */
export class NotInGroupError extends LockstepError {
  override readonly name = 'NotInGroupError';
  override readonly code = 'LOCKSTEP_NOT_IN_GROUP';
  override readonly scope = 'call';
}

/** Outside the declared capabilities of the backend, dtype or optimizer in use. */
export class UnsupportedError extends LockstepError {
  override readonly name = 'UnsupportedError';
  override readonly code = 'LOCKSTEP_UNSUPPORTED';
  override readonly scope = 'call';
}

/** A backend, its library or its device is missing; the message carries the reason. */
export class BackendUnavailableError extends LockstepError {
  override readonly name = 'BackendUnavailableError';
  override readonly code = 'LOCKSTEP_UNAVAILABLE';
  override readonly scope = 'call';
}

/** Used after `close()`, or after a failure that ended the group (then `cause` is that first failure). */
export class ClosedError extends LockstepError {
  override readonly name = 'ClosedError';
  override readonly code = 'LOCKSTEP_CLOSED';
  override readonly scope = 'call';
}

/** A checkpoint could not be written, or one is damaged, incomplete or not ours; the message says which and why. */
export class CheckpointError extends LockstepError {
  override readonly name = 'CheckpointError';
  override readonly code = 'LOCKSTEP_CHECKPOINT';
  override readonly scope = 'call';
}

/** Ranks of a group called different collectives, or the same one with different arguments. */
export class CollectiveMismatchError extends LockstepError {
  override readonly name = 'CollectiveMismatchError';
  override readonly code = 'LOCKSTEP_MISMATCH';
  override readonly scope = 'group';
}

/** The deadline passed; the message lists the ranks that did not arrive. */
export class CollectiveTimeoutError extends LockstepError {
  override readonly name = 'CollectiveTimeoutError';
  override readonly code = 'LOCKSTEP_TIMEOUT';
  override readonly scope = 'group';
}

/** Ranks wait for each other, or for ranks that have returned; found at once, without a deadline. */
export class DeadlockError extends LockstepError {
  override readonly name = 'DeadlockError';
  override readonly code = 'LOCKSTEP_DEADLOCK';
  override readonly scope = 'group';
}

/** A rank threw, exited or lost its connection; the message names it and carries what it said. */
export class PeerLostError extends LockstepError {
  override readonly name = 'PeerLostError';
  override readonly code = 'LOCKSTEP_PEER_LOST';
  override readonly scope = 'group';
}

/**
 * A world of ranks failed. `cause` is the error of the rank that failed first; `errors` is sparse, by rank,
 * and also holds the consequences on the others.
 */
export class WorldError extends LockstepError {
  override readonly name = 'WorldError';
  override readonly code = 'LOCKSTEP_WORLD';
  override readonly scope = 'group';
  readonly errors: readonly (Error | undefined)[];

  constructor(message: string, errors: readonly (Error | undefined)[], context: ErrorContext = {}) {
    super(message, context);
    this.errors = errors;
  }
}

/** A native library (NCCL, CUDA) reported a failure. */
export class NativeError extends LockstepError {
  override readonly name = 'NativeError';
  override readonly code = 'LOCKSTEP_NATIVE';
  override readonly scope: 'group' | 'process';

  constructor(message: string, scope: 'group' | 'process' = 'group', context: ErrorContext = {}) {
    super(message, context);
    this.scope = scope;
  }
}

/** An invariant of Lockstep itself broke. Please report it. */
export class InternalError extends LockstepError {
  override readonly name = 'InternalError';
  override readonly code = 'LOCKSTEP_INTERNAL';
  override readonly scope = 'process';
}

/** True for an error of Lockstep, also one from another copy of the package; with `code`, only for that code. */
export function isLockstepError(error: unknown, code?: LockstepErrorCode): error is LockstepError {
  if (typeof error !== 'object' || error === null || !(BRAND in error)) return false;
  return code === undefined || (error as { readonly code?: unknown }).code === code;
}

/** Whatever was thrown, as an Error. An error of another realm, or the DOMException of an AbortSignal, is one already. */
export function asError(thrown: unknown): Error {
  const isDOMException = Object.prototype.toString.call(thrown) === '[object DOMException]';
  if (types.isNativeError(thrown) || isDOMException) return thrown as Error;
  const text = typeof thrown === 'string' ? thrown : inspect(thrown); // String() throws for some objects
  return new Error(`a value that is not an Error was thrown: ${text}`, { cause: thrown });
}
