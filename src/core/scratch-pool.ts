import { allocateBuffer, dtypeOf, type DType, type HostBuffer } from './dtype';

/** Smaller scratch is cheaper to allocate than to look up. */
const MIN_POOLED_BYTES = 64 * 1024;
/** More than this is left to the collector. */
const MAX_IDLE_BYTES = 32 * 1024 * 1024;

/**
 * Buffers for the moment, used again by the next one of the same dtype and length: touching fresh memory costs as much as
 * filling it, and many large buffers keep the collector busy. What lies idle is in no memory account.
 */
export class ScratchPool {
  #idle = new Map<string, HostBuffer[]>();
  #idleBytes = 0;

  /** Contents are undefined. Give it back with `release` when nothing writes to it any more. */
  take(dtype: DType, length: number): HostBuffer {
    const scratch = this.#idle.get(`${dtype} ${length}`)?.pop();
    if (scratch === undefined) return allocateBuffer(dtype, length);
    this.#idleBytes -= scratch.byteLength;
    return scratch;
  }

  /** Leave all that lies idle to the collector. */
  clear(): void {
    this.#idle = new Map();
    this.#idleBytes = 0;
  }

  release(scratch: HostBuffer): void {
    const { byteLength } = scratch;
    if (byteLength < MIN_POOLED_BYTES || byteLength > MAX_IDLE_BYTES) return;
    if (this.#idleBytes + byteLength > MAX_IDLE_BYTES) {
      // Sizes of the past would keep those of now out.
      this.clear();
    }
    const key = `${dtypeOf(scratch)} ${scratch.length}`;
    const idle = this.#idle.get(key);
    if (idle === undefined) this.#idle.set(key, [scratch]);
    else idle.push(scratch);
    this.#idleBytes += byteLength;
  }
}
