/** The form in which an error crosses a process or worker boundary, which strips classes and own fields. */
import {
  BackendUnavailableError,
  CheckpointError,
  ClosedError,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  DeadlockError,
  InternalError,
  InvalidArgumentError,
  NativeError,
  NotInGroupError,
  PeerLostError,
  UnsupportedError,
  WorldError,
  asError,
  isLockstepError,
  type ErrorContext,
  type ErrorScope,
  type LockstepError,
  type LockstepErrorCode,
} from './errors';

export interface WireError {
  readonly name: string;
  readonly message: string;
  readonly stack: string | null;
  readonly code: LockstepErrorCode | null;
  readonly scope: ErrorScope | null;
  readonly rank: number | null;
  readonly group: string | null;
  readonly op: string | null;
  readonly sequence: number | null;
  readonly ranks: readonly number[] | null;
  readonly globalRanks: readonly number[] | null;
  readonly cause: WireError | null;
  /** Of a WorldError: by rank, null where a rank had none. */
  readonly errors: readonly (WireError | null)[] | null;
}

/** A chain of causes longer than this is cut: it is a cycle or of no use to a reader. */
const MAX_DEPTH = 8;

/** Plain JSON-safe fields that hold everything `fromWire` needs. */
export function toWire(thrown: unknown, depth = 0): WireError {
  const error = asError(thrown);
  const lockstep = isLockstepError(error) ? error : undefined;
  const context = lockstep?.context;
  const nested = (value: unknown): WireError | null =>
    value === undefined || value === null || depth >= MAX_DEPTH ? null : toWire(value, depth + 1);
  return {
    name: error.name,
    message: error.message,
    stack: error.stack ?? null,
    code: lockstep?.code ?? null,
    scope: lockstep?.scope ?? null,
    rank: context?.rank ?? null,
    group: context?.group ?? null,
    op: context?.op ?? null,
    sequence: context?.sequence ?? null,
    ranks: context?.ranks ?? null,
    globalRanks: context?.globalRanks ?? null,
    cause: nested(error.cause),
    errors: lockstep?.code === 'LOCKSTEP_WORLD' ? Array.from((lockstep as WorldError).errors, nested) : null,
  };
}

/** The error again, as the class of its code; an error that was not ours comes back as a plain Error. */
export function fromWire(wire: WireError): Error {
  const error = wire.code === null ? plainError(wire) : lockstepError(wire, wire.code);
  if (wire.stack !== null) error.stack = wire.stack;
  return error;
}

function plainError(wire: WireError): Error {
  const error = new Error(wire.message, wire.cause === null ? undefined : { cause: fromWire(wire.cause) });
  error.name = wire.name;
  return error;
}

function lockstepError(wire: WireError, code: LockstepErrorCode): LockstepError {
  const context: ErrorContext = {
    rank: wire.rank ?? undefined,
    group: wire.group ?? undefined,
    op: wire.op ?? undefined,
    sequence: wire.sequence ?? undefined,
    ranks: wire.ranks ?? undefined,
    globalRanks: wire.globalRanks ?? undefined,
    cause: wire.cause === null ? undefined : fromWire(wire.cause),
  };
  switch (code) {
    case 'LOCKSTEP_INVALID_ARGUMENT':
      return new InvalidArgumentError(wire.message, context);
    case 'LOCKSTEP_NOT_IN_GROUP':
      return new NotInGroupError(wire.message, context);
    case 'LOCKSTEP_UNSUPPORTED':
      return new UnsupportedError(wire.message, context);
    case 'LOCKSTEP_UNAVAILABLE':
      return new BackendUnavailableError(wire.message, context);
    case 'LOCKSTEP_CLOSED':
      return new ClosedError(wire.message, context);
    case 'LOCKSTEP_CHECKPOINT':
      return new CheckpointError(wire.message, context);
    case 'LOCKSTEP_MISMATCH':
      return new CollectiveMismatchError(wire.message, context);
    case 'LOCKSTEP_TIMEOUT':
      return new CollectiveTimeoutError(wire.message, context);
    case 'LOCKSTEP_DEADLOCK':
      return new DeadlockError(wire.message, context);
    case 'LOCKSTEP_PEER_LOST':
      return new PeerLostError(wire.message, context);
    case 'LOCKSTEP_WORLD':
      return new WorldError(
        wire.message,
        (wire.errors ?? []).map((entry) => (entry === null ? undefined : fromWire(entry))),
        context,
      );
    case 'LOCKSTEP_NATIVE':
      return new NativeError(wire.message, wire.scope === 'process' ? 'process' : 'group', context);
    case 'LOCKSTEP_INTERNAL':
      return new InternalError(wire.message, context);
    default:
      return unknownCode(code, wire.message, context);
  }
}

/** A newer peer may know a code that we do not; TypeScript still tells us when we forget one of our own. */
function unknownCode(code: never, message: string, context: ErrorContext): LockstepError {
  return new InternalError(`${message} (unknown error code ${String(code)})`, context);
}
