/**
 * The processes of a job beside the path that its data takes: how the ranks of a backend whose data travels elsewhere (over
 * NCCL) agree on each call, and learn of each other's failures. The gRPC backend provides it.
 */
import type { CallSite } from '../core/call-site';
import type { DataBuffer } from '../core/dtype';
import type { GroupRanks } from '../core/group-ranks';
import type { Work } from '../core/work';
import type { BackendStore } from './backend-store';
import type { CallOp } from './call';
import type { CheckedCollective } from './check-collective';
import type { CheckedPointToPoint } from './check-point-to-point';

/** What ended a group. */
export interface ControlFailure {
  /** What later ClosedErrors name as their cause. */
  readonly cause: Error;
  /** What a call of this rank that was in flight fails with. */
  readonly errorFor: (call: ControlledCall) => Error;
}

/** A call that was announced, and is in flight elsewhere. */
export interface ControlledCall {
  readonly op: string;
  /** Of a collective: that of its announcement. */
  readonly sequence: number | undefined;
  /** Its deadline, on the system clock. */
  readonly dueMs: number;
}

/** One rank's end of a group. Its errors are those of [Note: rules of a backend], and name ranks and calls. */
export interface ControlGroup {
  /** Identity, the same on all ranks: 'world', 'world/0'. */
  readonly id: string;
  readonly rank: number;
  readonly ranks: GroupRanks;
  readonly isClosed: boolean;

  /** Why a new call cannot start, if it cannot. */
  refusal(op: CallOp): Error | undefined;

  /**
   * Announce a collective, without its data: it takes the next sequence number, and settles once every rank has announced
   * the same one. Rejects as the collective itself would on the gRPC backend: mismatch, timeout with the ranks that did not
   * come, lost peer, closed.
   */
  announce(checked: CheckedCollective<DataBuffer>, callSite?: CallSite): Work;

  /**
   * Announce sends and receives, without their data: settles once all peers have announced theirs. The n-th send of a rank to
   * another meets the n-th receive of that rank from it; where dtype, count or tag differ, the group ends by a mismatch.
   * `refuseLongTags` has been asked before.
   */
  announceMessages(op: 'send' | 'recv' | 'batch', checked: CheckedPointToPoint<DataBuffer>, callSite?: CallSite): Work;

  /**
   * The group of the ranks that a split lists, in their order. Once; its identity does not depend on when.
   * @param split what `announce` of the split gave, and is complete
   * @returns undefined if this rank is not in it
   */
  child(split: Work): ControlGroup | undefined;

  /**
   * End the group on all ranks because the data's path failed here; they get `error`, with their own calls' places.
   * @param isToldOnce a rank without a call in flight gets `error` itself at its next call; default: ClosedError
   */
  fail(error: Error, isToldOnce?: boolean): void;
  /** End the group on all ranks because the program says so: they get ClosedError with this cause. */
  abort(reason: Error): void;
  /**
   * Which ranks give no sign of life. `onEnd` gets them once all others have answered, or after `limitMs`; it is not called
   * where the group ends first.
   */
  findSilent(limitMs: number, onEnd: (silentRanks: readonly number[]) => void): void;
  /** Called once, when the group ends other than by `close` here; at once if it has. Any number of listeners. */
  onFailed(listener: (failure: ControlFailure) => void): void;
  /** Fail this rank's announcements in flight, of child groups too, and tell the others that it makes no more. Idempotent. */
  close(): void;
}

export interface ControlPlane {
  /** The group of all ranks. */
  readonly root: ControlGroup;
  readonly rank: number;
  readonly worldSize: number;
  /** Ends its waits when the root group fails, and is closed with the plane; undefined: there is none. */
  readonly store: BackendStore | undefined;
  /** Calls note where in the program they were made. */
  readonly hasCallSites: boolean;
  /**
   * Every rank gives some bytes and gets everybody's, by rank. For the start of a backend: it takes no sequence number.
   * @throws as a collective does
   */
  exchange(bytes: Uint8Array, timeoutMs: number): Promise<Uint8Array[]>;
  /** Close all groups and links. Idempotent. */
  close(): Promise<void>;
}
