import { allocateBuffer, copyBuffer, dtypeOf, type HostBuffer } from '../core/dtype';
import type { TensorPart } from '../strategy/state-parts';
import { Lease, Storage, withMemoryCategory } from '../tensor/storage';

/** Copies of parts, counted as 'other' until they are released. */
export interface Snapshot {
  readonly parts: readonly TensorPart[];
  release(): void;
}

/** Copy what a save in the background will write, so that training may change it meanwhile. */
export function takeSnapshot(parts: readonly TensorPart[]): Snapshot {
  const leases: Lease[] = [];
  const copies = parts.map((part) => {
    const storage = withMemoryCategory('other', () => Storage.of(copyOf(part.buffer)));
    leases.push(new Lease(storage.allocation));
    return { ...part, buffer: storage.buffer };
  });
  return { parts: copies, release: () => leases.forEach((lease) => lease.release()) };
}

function copyOf(buffer: HostBuffer): HostBuffer {
  const copy = allocateBuffer(dtypeOf(buffer), buffer.length);
  copyBuffer(copy, buffer);
  return copy;
}
