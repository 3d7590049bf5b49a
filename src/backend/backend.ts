/**
 * What a backend is: the collectives of one group of ranks, on plain buffers. Everything above (process groups, the
 * functional collectives, DDP, ZeRO) is written against this file, and one conformance suite holds every backend to it.
 *
 * [Note: rules of a backend]
 * 1. Collectives of a group match by sequence number and carry a fingerprint (op, reduce op, dtype, counts, root,
 *    group). Where ranks disagree, every rank whose call is incomplete gets CollectiveMismatchError.
 * 2. Bad arguments reject with InvalidArgumentError before anything is sent, and consume no sequence number.
 * 3. Every wait has a deadline. A lost peer is named at once. A failure poisons its group: later calls reject with
 *    ClosedError whose cause is the first failure.
 * 4. Point to point is rendezvous and FIFO per (source, destination, tag); groups never mix.
 * 5. After `close()` nothing keeps the process alive.
 */
import type { DataBuffer, DType } from '../core/dtype';
import type { ReduceOp } from '../core/reduce-op';
import type { Work } from '../core/work';
import type { BackendDevice } from './backend-device';
import type { BackendStore } from './backend-store';

/** What a backend can do; declared, so that what it lacks is refused before anything is sent. */
export interface BackendCapabilities {
  /** Where buffers may live. */
  readonly devices: readonly ('cpu' | 'cuda')[];
  readonly dtypes: readonly DType[];
  readonly reduceOps: readonly ReduceOp[];
  /** False: Average takes floating point numbers only. */
  readonly integerAverage?: boolean | undefined;
  /** 'thread': transfers go on while JavaScript computes; 'event-loop': they move when it yields. */
  readonly progress: 'thread' | 'event-loop';
  /** True if reductions go in rank order, so that results have the mock's bits. */
  readonly bitwise: boolean;
}

export interface CallOptions {
  /** Milliseconds for the whole call; default: the group's. */
  readonly timeoutMs?: number | undefined;
  /**
   * Shape of the tensor that this rank passes to a collective. Ranks must agree on it as on everything else: [2, 3] on one
   * and [3, 2] on another is a mismatch, though the counts are the same. One dimension says no more than the count.
   */
  readonly shape?: readonly number[] | undefined;
  /** What the buffer of a collective holds, as 'gradients of fc1.weight'. Ranks must agree on it; messages show it. */
  readonly label?: string | undefined;
}

/** Unequal parts: `counts[r]` elements belong to rank r. Every rank passes the same list. */
export interface CountsOptions extends CallOptions {
  readonly counts?: readonly number[] | undefined;
}

export interface AllToAllOptions extends CallOptions {
  /** Elements for each rank, in rank order, from the front of `send`; default: equal parts. */
  readonly sendCounts?: readonly number[] | undefined;
  /** Elements from each rank, in rank order, into the front of `recv`; default: equal parts. */
  readonly recvCounts?: readonly number[] | undefined;
}

/** One part of a `batch`. */
export interface P2pOp {
  readonly op: 'send' | 'recv';
  readonly data: DataBuffer;
  /** Rank in the group. */
  readonly peer: number;
  readonly tag?: number | undefined;
}

/**
 * One rank's end of a group.
 *
 * Shapes are element counts; `n` below is per rank. Roots and peers are ranks of this group. Every collective is
 * called by all ranks of the group, in the same order. Ownership: leave all buffers alone until the Work settles.
 * Errors: see [Note: rules of a backend]; `InvalidArgumentError` leaves the group usable, all others end it.
 */
export interface Backend {
  /** 'mock' | 'grpc' | 'nccl' | ... */
  readonly name: string;
  /** This rank, 0..worldSize-1, in the group that this backend connects. */
  readonly rank: number;
  /** Number of ranks of the group that this backend connects. */
  readonly worldSize: number;
  readonly capabilities: BackendCapabilities;
  /** Of the group of all ranks alone: keys and values that they share, closed with it; undefined: there is none. */
  readonly store?: BackendStore | undefined;
  /** This rank's accelerator, the same for all groups of its world: what makes DeviceBuffers; undefined: there is none. */
  readonly device?: BackendDevice | undefined;

  /** Reduce [n] over all ranks, in place, on every rank. */
  allReduce(data: DataBuffer, op: ReduceOp, options?: CallOptions): Work;
  /** Copy [n] of rank `src` into `data` of every other rank. */
  broadcast(data: DataBuffer, src: number, options?: CallOptions): Work;
  /** recv [worldSize * n] = all ranks' send [n], in rank order. send may be this rank's slice of recv. */
  allGather(send: DataBuffer, recv: DataBuffer, options?: CountsOptions): Work;
  /** recv [n] = this rank's slice of the reduction of send [worldSize * n]. recv may be this rank's slice of send. */
  reduceScatter(send: DataBuffer, recv: DataBuffer, op: ReduceOp, options?: CountsOptions): Work;
  /** recv [n] on rank `dst` = the reduction of send [n]; the others pass undefined. recv may be send. */
  reduce(send: DataBuffer, recv: DataBuffer | undefined, dst: number, op: ReduceOp, options?: CallOptions): Work;
  /** recv [worldSize * n] on rank `dst` = all ranks' send [n], in rank order; the others pass undefined. */
  gather(send: DataBuffer, recv: DataBuffer | undefined, dst: number, options?: CallOptions): Work;
  /** recv [n] = this rank's slice of send [worldSize * n] of rank `src`; the others pass undefined. */
  scatter(send: DataBuffer | undefined, recv: DataBuffer, src: number, options?: CallOptions): Work;
  /** The j-th part of rank i's send becomes the i-th part of rank j's recv. */
  allToAll(send: DataBuffer, recv: DataBuffer, options?: AllToAllOptions): Work;
  /** Settles once every rank has called it. */
  barrier(options?: CallOptions): Work;

  /** Settles once rank `dst` has received. Tag default 0. */
  send(data: DataBuffer, dst: number, tag?: number, options?: CallOptions): Work;
  /** Settles once `data` holds what rank `src` sent with this tag; lengths and dtypes must agree. Tag default 0. */
  recv(data: DataBuffer, src: number, tag?: number, options?: CallOptions): Work;
  /** Sends and receives that all progress together, in any order; settles when all have. */
  batch(ops: readonly P2pOp[], options?: CallOptions): Work;

  /**
   * A backend for the given ranks of this one, which keep the order given; undefined on ranks that are not listed.
   * Collective over this backend: every rank passes the same list.
   */
  split(ranks: readonly number[], options?: CallOptions): Promise<Backend | undefined>;

  /** Fail every pending and future call of this group, on every rank, with `reason` as the cause. */
  abort(reason: Error): void;
  /** Release everything. Idempotent; later calls reject with ClosedError. Pending calls reject, on peers too. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
