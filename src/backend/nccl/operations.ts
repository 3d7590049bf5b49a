/** What a checked call is to NCCL: this rank's operations, and where in device memory they read and write. */
import { byteSize, type DType } from '../../core/dtype';
import { invariant } from '../../core/invariant';
import { ReduceOp } from '../../core/reduce-op';
import type { CollectiveCall, PointToPointCall } from '../call';
import { partLength, partStart, type Counts } from '../parts';
import type { Block, NcclOperation, NcclReduceOp } from './addon';

/** A place in device memory. */
export interface Operand {
  readonly block: Block;
  readonly byteOffset: number;
}

/** Where the buffers of a collective begin; undefined where this rank passes none, or one without elements. */
export interface CollectiveOperands {
  readonly send: Operand | undefined;
  readonly recv: Operand | undefined;
}

export interface GroupPlace {
  readonly rank: number;
  readonly size: number;
}

/** More than one are one NCCL group; none: there is nothing to move. */
export function collectiveOperations(
  call: CollectiveCall,
  place: GroupPlace,
  operands: CollectiveOperands,
): NcclOperation[] {
  if (call.dtype === undefined) return []; // a barrier, a split
  const { counts = 0 } = call;
  const plan = new Plan(call, call.dtype, place, operands);
  switch (call.op) {
    case 'allReduce':
    case 'broadcast':
    case 'reduce':
      return plan.whole(call.op, partLength(counts, place.rank));
    case 'allGather':
    case 'reduceScatter':
      return typeof counts === 'number' ? plan.equalParts(call.op, counts) : plan.unequalParts(call.op, counts);
    case 'gather':
    case 'scatter':
    case 'allToAll':
      return plan.exchange(counts);
    default:
      return [];
  }
}

/** Of sends and receives, in the order of issue; one NCCL group where there are several. */
export function messageOperations(
  parts: readonly { readonly call: PointToPointCall; readonly place: Operand | undefined }[],
): NcclOperation[] {
  return parts.flatMap(({ call: { op, dtype, count, peer }, place }): NcclOperation[] => {
    if (count === 0) return [];
    const operand = at(place, 0, dtype);
    return op === 'send'
      ? [{ kind: 'send', count, dtype, send: operand, peer }]
      : [{ kind: 'recv', count, dtype, recv: operand, peer }];
  });
}

const REDUCE_OPS: Readonly<Partial<Record<ReduceOp, NcclReduceOp>>> = {
  Sum: 'sum',
  Product: 'product',
  Min: 'min',
  Max: 'max',
  Average: 'average',
};

/** Builds the operations of one collective. Parts without elements have none, on all ranks alike. */
class Plan {
  constructor(
    readonly call: CollectiveCall,
    readonly dtype: DType,
    readonly place: GroupPlace,
    readonly operands: CollectiveOperands,
  ) {}

  whole(kind: 'allReduce' | 'broadcast' | 'reduce', count: number): NcclOperation[] {
    if (count === 0) return [];
    const { root = 0 } = this.call;
    if (kind === 'broadcast') return [this.#broadcast(root, count, 0)];
    if (kind === 'reduce') return [this.#reduce(root, count, 0)];
    return [{ kind, count, dtype: this.dtype, send: this.#send(0), recv: this.#recv(0), op: this.#op }];
  }

  equalParts(kind: 'allGather' | 'reduceScatter', count: number): NcclOperation[] {
    if (count === 0) return [];
    const common = { count, dtype: this.dtype, send: this.#send(0), recv: this.#recv(0) };
    return [kind === 'allGather' ? { kind, ...common } : { kind, ...common, op: this.#op }];
  }

  /** NCCL has equal parts alone: each owner broadcasts its part, or gets it reduced. */
  unequalParts(kind: 'allGather' | 'reduceScatter', counts: readonly number[]): NcclOperation[] {
    return counts.flatMap((count, owner) => {
      if (count === 0) return [];
      const start = partStart(counts, owner);
      return [kind === 'allGather' ? this.#broadcast(owner, count, start) : this.#reduce(owner, count, start)];
    });
  }

  /** What goes from each rank to each: sends and receives, that to itself too. */
  exchange(counts: Counts): NcclOperation[] {
    const { op, root, sendCounts = counts, recvCounts = counts } = this.call;
    const { rank, size } = this.place;
    const sends: NcclOperation[] = [];
    const recvs: NcclOperation[] = [];
    for (let peer = 0; peer < size; peer++) {
      const isSending = op === 'allToAll' || (op === 'gather' ? peer === root : rank === root);
      const isReceiving = op === 'allToAll' || (op === 'gather' ? rank === root : peer === root);
      // what a gather sends and a scatter receives is one part, not one for each peer
      const sendStart = op === 'gather' ? 0 : partStart(sendCounts, peer);
      const recvStart = op === 'scatter' ? 0 : partStart(recvCounts, peer);
      const [toPeer, fromPeer] = [partLength(sendCounts, peer), partLength(recvCounts, peer)];
      if (peer === rank && isSending && toPeer > 0 && this.#isInPlace(sendStart, recvStart)) continue;
      if (isSending && toPeer > 0) {
        sends.push({ kind: 'send', count: toPeer, dtype: this.dtype, send: this.#send(sendStart), peer });
      }
      if (isReceiving && fromPeer > 0) {
        recvs.push({ kind: 'recv', count: fromPeer, dtype: this.dtype, recv: this.#recv(recvStart), peer });
      }
    }
    return [...sends, ...recvs];
  }

  /** Of ranks that own nothing of it, NCCL does not look at `send`. */
  #broadcast(owner: number, count: number, recvStart: number): NcclOperation {
    const { recv, send } = this.operands;
    const isOwner = this.place.rank === owner;
    // the source of a plain broadcast passes no recv
    const target = isOwner && recv === undefined ? this.#send(0) : this.#recv(recvStart);
    const source = isOwner && send !== undefined ? this.#send(0) : target;
    return { kind: 'broadcast', count, dtype: this.dtype, send: source, recv: target, root: owner };
  }

  /** Of ranks that are not the owner, NCCL does not look at `recv`. */
  #reduce(owner: number, count: number, sendStart: number): NcclOperation {
    const send = this.#send(sendStart);
    const recv = this.place.rank === owner ? this.#recv(0) : send;
    return { kind: 'reduce', count, dtype: this.dtype, send, recv, op: this.#op, root: owner };
  }

  get #op(): NcclReduceOp {
    // A group of one gets its input back; NCCL's average multiplies by 1, which changes the bits of a NaN.
    const op = this.place.size === 1 ? ReduceOp.Sum : this.call.reduceOp;
    const name = op === undefined ? undefined : REDUCE_OPS[op];
    invariant(name !== undefined, `NCCL reduces by no ${op}`);
    return name;
  }

  #isInPlace(sendStart: number, recvStart: number): boolean {
    const [send, recv] = [this.#send(sendStart), this.#recv(recvStart)];
    return send.block === recv.block && send.byteOffset === recv.byteOffset;
  }

  #send(start: number): Operand {
    return at(this.operands.send, start, this.dtype);
  }

  #recv(start: number): Operand {
    return at(this.operands.recv, start, this.dtype);
  }
}

function at(operand: Operand | undefined, start: number, dtype: DType): Operand {
  invariant(operand !== undefined, 'a buffer with elements has a place on the device');
  return { block: operand.block, byteOffset: operand.byteOffset + start * byteSize(dtype) };
}
