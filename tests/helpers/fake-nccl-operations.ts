/** What operations of NCCL do to the memory of fake GPUs. */
import type { Block, NcclOperation, NcclReduceOp } from '../../src/backend/nccl/addon';
import { allocateBuffer, byteSize, bytesOf, type HostBuffer } from '../../src/core/dtype';
import { reduceBuffers } from '../../src/core/reduce';
import { ReduceOp } from '../../src/core/reduce-op';

export interface FakeBlock {
  readonly bytes: Uint8Array;
  isReleased: boolean;
}

const REDUCE_OPS: Readonly<Record<NcclReduceOp, ReduceOp>> = {
  sum: ReduceOp.Sum,
  product: ReduceOp.Product,
  min: ReduceOp.Min,
  max: ReduceOp.Max,
  average: ReduceOp.Average,
};

export function blocksOf(operation: NcclOperation): Block[] {
  return [
    ...('send' in operation ? [operation.send.block] : []),
    ...('recv' in operation ? [operation.recv.block] : []),
  ];
}

type Extent = Pick<NcclOperation, 'count' | 'dtype'>;

export function place(
  { block, byteOffset }: { readonly block: Block; readonly byteOffset: number },
  { count, dtype }: Extent,
  start = 0,
): Uint8Array {
  const first = byteOffset + start * byteSize(dtype);
  const { bytes } = block as unknown as FakeBlock;
  const last = first + count * byteSize(dtype);
  if (last > bytes.byteLength) throw new Error(`bytes ${first} to ${last} of a block of ${bytes.byteLength}`);
  return bytes.subarray(first, last);
}

function read(bytes: Uint8Array, { count, dtype }: Extent): HostBuffer {
  const buffer = allocateBuffer(dtype, count);
  bytesOf(buffer).set(bytes);
  return buffer;
}

/** One operation, as each rank passed it. */
export function runCollective(byRank: readonly NcclOperation[]): void {
  const [first] = byRank as readonly [NcclOperation];
  switch (first.kind) {
    case 'broadcast': {
      const source = byRank[first.root];
      if (source?.kind !== 'broadcast') return;
      const data = place(source.send, source).slice();
      for (const each of byRank) if (each.kind === 'broadcast') place(each.recv, each).set(data);
      return;
    }
    case 'allGather': {
      const parts = byRank.map((each) => (each.kind === 'allGather' ? place(each.send, each).slice() : undefined));
      for (const each of byRank) {
        if (each.kind !== 'allGather') continue;
        parts.forEach((part, rank) => part && place(each.recv, each, rank * each.count).set(part));
      }
      return;
    }
    case 'allReduce':
    case 'reduce': {
      const result = reduced(byRank, first.op);
      byRank.forEach((each, rank) => {
        const isTarget = each.kind === 'allReduce' || (each.kind === 'reduce' && each.root === rank);
        if (isTarget) place(each.recv, each).set(bytesOf(result));
      });
      return;
    }
    case 'reduceScatter': {
      const results = byRank.map((_unused, owner) => reduced(byRank, first.op, owner * first.count));
      byRank.forEach((each, rank) => {
        if (each.kind === 'reduceScatter') place(each.recv, each).set(bytesOf(results[rank] as HostBuffer));
      });
      return;
    }
    case 'send':
    case 'recv':
      throw new Error('a send or receive is no collective');
  }
}

function reduced(byRank: readonly NcclOperation[], op: NcclReduceOp, start = 0): HostBuffer {
  const inputs = byRank.flatMap((each) => ('send' in each ? [read(place(each.send, each, start), each)] : []));
  const [{ count, dtype }] = byRank as readonly [NcclOperation];
  const target = allocateBuffer(dtype, count);
  reduceBuffers(target, inputs, REDUCE_OPS[op]);
  return target;
}
