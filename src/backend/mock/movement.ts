/** What each collective does to the data, once every rank's contribution is there. The dullest correct code. */
import { allocateBuffer, copyBuffer, dtypeOf, viewBuffer, type HostBuffer } from '../../core/dtype';
import { invariant } from '../../core/invariant';
import { reduceBuffers } from '../../core/reduce';
import type { CollectiveCall } from '../call';
import { partLength, partStart } from '../parts';

/** Writes one rank's result into `recv`. */
export type ResultWriter = (rank: number, recv: HostBuffer) => void;

/**
 * The result of a collective, to be written rank by rank.
 *
 * @param contributions by rank; they must not change until the last result is written, unless `isAtOnce`
 * @param isAtOnce all results are written, in any order, before anything else runs: then a shared result may stay in
 *   the first rank's buffer instead of one of its own
 */
export function resultWriter(
  call: CollectiveCall,
  calls: readonly CollectiveCall[],
  contributions: readonly (HostBuffer | undefined)[],
  isAtOnce: boolean,
): ResultWriter {
  const counts = call.counts ?? 0;
  switch (call.op) {
    case 'allReduce':
    case 'reduce':
      return sharedReduction(call, contributions as readonly HostBuffer[], isAtOnce);
    case 'broadcast':
      return (_rank, recv) => copyBuffer(recv, contributionOf(contributions, call.root));
    case 'allGather':
    case 'gather':
      return (_rank, recv) => {
        contributions.forEach((part, from) => copyInto(recv, part, partStart(counts, from)));
      };
    case 'reduceScatter':
      return (rank, recv) => {
        const start = partStart(counts, rank);
        const length = partLength(counts, rank);
        const parts = (contributions as readonly HostBuffer[]).map((send) => viewBuffer(send, start, length));
        reduceBuffers(recv, parts, reduceOpOf(call));
      };
    case 'scatter':
      return (rank, recv) => {
        const send = contributionOf(contributions, call.root);
        copyInto(recv, viewBuffer(send, partStart(counts, rank), partLength(counts, rank)), 0);
      };
    case 'allToAll':
      return (rank, recv) => exchangeInto(rank, recv, calls, contributions as readonly HostBuffer[]);
    case 'barrier':
    case 'split':
      return () => undefined;
  }
}

function sharedReduction(call: CollectiveCall, contributions: readonly HostBuffer[], isAtOnce: boolean): ResultWriter {
  let result: HostBuffer | undefined;
  return (_rank, recv) => {
    if (result !== undefined) return copyBuffer(recv, result);
    result = isAtOnce ? recv : allocateBuffer(dtypeOf(recv), recv.length);
    reduceBuffers(result, contributions, reduceOpOf(call));
    if (result !== recv) copyBuffer(recv, result);
  };
}

function exchangeInto(
  rank: number,
  recv: HostBuffer,
  calls: readonly CollectiveCall[],
  contributions: readonly HostBuffer[],
): void {
  const recvCounts = (calls[rank] as CollectiveCall).recvCounts ?? [];
  contributions.forEach((send, from) => {
    const sendCounts = (calls[from] as CollectiveCall).sendCounts ?? [];
    const part = viewBuffer(send, partStart(sendCounts, rank), partLength(sendCounts, rank));
    copyInto(recv, part, partStart(recvCounts, from));
  });
}

/** A rank's own part, in place, is there already; copying it onto itself changes nothing. */
function copyInto(recv: HostBuffer, part: HostBuffer | undefined, start: number): void {
  invariant(part !== undefined, 'a rank that has arrived must have contributed');
  copyBuffer(recv, part, start);
}

function contributionOf(contributions: readonly (HostBuffer | undefined)[], rank: number | undefined): HostBuffer {
  const contribution = contributions[rank ?? 0];
  invariant(contribution !== undefined, 'the root must have contributed');
  return contribution;
}

function reduceOpOf(call: CollectiveCall): NonNullable<CollectiveCall['reduceOp']> {
  invariant(call.reduceOp !== undefined, `${call.op} must name a reduce op`);
  return call.reduceOp;
}
