import { allocateBuffer, dtypeOf, type DType, type HostBuffer } from '../../core/dtype';

/** Smaller scratch is cheaper to allocate than to look up. */
const MIN_POOLED_BYTES = 64 * 1024;
/** More than this is left to the collector. */
const MAX_IDLE_BYTES = 32 * 1024 * 1024;

/** Scratch of collectives, used again by the next one: touching fresh memory costs as much as filling it. */
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

  release(scratch: HostBuffer): void {
    const { byteLength } = scratch;
    if (byteLength < MIN_POOLED_BYTES || byteLength > MAX_IDLE_BYTES) return;
    if (this.#idleBytes + byteLength > MAX_IDLE_BYTES) {
      // Sizes of the past would keep those of now out.
      this.#idle = new Map();
      this.#idleBytes = 0;
    }
    const key = `${dtypeOf(scratch)} ${scratch.length}`;
    const idle = this.#idle.get(key);
    if (idle === undefined) this.#idle.set(key, [scratch]);
    else idle.push(scratch);
    this.#idleBytes += byteLength;
  }
}
