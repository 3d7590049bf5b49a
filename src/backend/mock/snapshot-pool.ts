import { allocateBuffer, copyBuffer, dtypeOf, type HostBuffer } from '../../core/dtype';

/** Smaller buffers are cheaper to allocate than to look up. */
const MIN_POOLED_BYTES = 64 * 1024;
/** More than this is left to the collector. */
const MAX_IDLE_BYTES = 256 * 1024 * 1024;

/**
 * Copies of buffers in flight, used again for the next call of the same size: touching fresh memory costs several times
 * what the copy itself does.
 */
export class SnapshotPool {
  readonly #idle = new Map<string, HostBuffer[]>();
  #idleBytes = 0;

  /** A copy of `source`; give it back with `release` once nobody reads it. */
  copy(source: HostBuffer): HostBuffer {
    const copy = this.#take(source) ?? allocateBuffer(dtypeOf(source), source.length);
    copyBuffer(copy, source);
    return copy;
  }

  release(copy: HostBuffer): void {
    const { byteLength } = copy;
    if (byteLength < MIN_POOLED_BYTES || this.#idleBytes + byteLength > MAX_IDLE_BYTES) return;
    const key = keyOf(copy);
    const idle = this.#idle.get(key);
    if (idle === undefined) this.#idle.set(key, [copy]);
    else idle.push(copy);
    this.#idleBytes += byteLength;
  }

  #take(source: HostBuffer): HostBuffer | undefined {
    if (source.byteLength < MIN_POOLED_BYTES) return undefined;
    const copy = this.#idle.get(keyOf(source))?.pop();
    if (copy !== undefined) this.#idleBytes -= copy.byteLength;
    return copy;
  }
}

function keyOf(buffer: HostBuffer): string {
  return `${dtypeOf(buffer)} ${buffer.length}`;
}
