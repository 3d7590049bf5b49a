/** Buffers that are handed to a call while another call, of this rank or another, still has them. */
import type { HostBuffer } from '../../core/dtype';
import { InvalidArgumentError } from '../../core/errors';
import { overlapStart } from '../check-arguments';
import type { MockCall } from './mock-call';
import type { MockWorld } from './mock-world';

/** What a call does to memory. */
export interface MemoryUse {
  readonly reads: readonly HostBuffer[];
  readonly writes: readonly HostBuffer[];
}

/**
 * Two calls may read the same memory; if one of them writes it, the result depends on which is first.
 * @throws InvalidArgumentError that names the call in flight
 */
export function refuseMemoryInUse(world: MockWorld, rank: number, use: MemoryUse): void {
  for (const other of world.ranks) {
    for (const call of other.calls) {
      if (isClash(use, call.memoryUse)) throw clashError(call, call.owner.globalRank === rank);
    }
  }
}

function isClash(a: MemoryUse, b: MemoryUse): boolean {
  return overlaps(a.writes, b.writes) || overlaps(a.writes, b.reads) || overlaps(a.reads, b.writes);
}

function overlaps(left: readonly HostBuffer[], right: readonly HostBuffer[]): boolean {
  return left.some((a) => right.some((b) => overlapStart(a, b) !== undefined));
}

function clashError(call: MockCall, isSameRank: boolean): Error {
  const inFlight = `${call.title}, of ${call.group.ranks.name(call.rank)}`;
  return new InvalidArgumentError(
    isSameRank
      ? `the buffer is still in use by ${inFlight}. Await that call first, or pass another buffer.`
      : `the buffer shares memory with that of ${inFlight}. Ranks of a mock world live in one process: give each its own buffers.`,
  );
}
