/** Launches of kernels on a device, with memory around the elements that nothing may touch. */
import { allocateBuffer, bytesOf, dtypeOf, isSameBits, type HostBuffer } from '../../src/core/dtype';
import type { Block } from '../../src/backend/nccl/addon';
import type { DeviceElements, KernelLaunch } from '../../src/backend/nccl/kernel-launch';
import { WAIT_MS, expect, type Bench } from './bench';

const GUARD_BYTES = 16;
const GUARD_BYTE = 0xa5;

export class KernelBench {
  readonly #bench: Bench;
  readonly #blocks: Block[] = [];
  readonly #uploads: Promise<void>[] = [];
  readonly #launched: Set<string>;

  /** @param launched gets the names of the kernels that run */
  constructor(bench: Bench, launched: Set<string>) {
    this.#bench = bench;
    this.#launched = launched;
  }

  /** The elements of `buffer`, in memory of their own. */
  put(buffer: HostBuffer): DeviceElements {
    const { addon } = this.#bench;
    const bytes = new Uint8Array(buffer.byteLength + 2 * GUARD_BYTES).fill(GUARD_BYTE);
    bytes.set(bytesOf(buffer), GUARD_BYTES);
    const block = addon.allocate(this.#bench.device(), bytes.length);
    this.#blocks.push(block);
    this.#uploads.push(addon.upload(block, 0, bytes, WAIT_MS));
    return { block, byteOffset: GUARD_BYTES, dtype: dtypeOf(buffer), length: buffer.length };
  }

  run({ kernel, gridSize, blockSize, args }: KernelLaunch): void {
    this.#bench.addon.launch(this.#bench.device(), kernel, gridSize, blockSize, args);
    this.#launched.add(kernel);
  }

  /** A copy of the elements. @throws Error where something beside them was written */
  async take<B extends HostBuffer = HostBuffer>({ block, byteOffset, dtype, length }: DeviceElements): Promise<B> {
    const buffer = allocateBuffer(dtype, length);
    const bytes = new Uint8Array(buffer.byteLength + 2 * GUARD_BYTES);
    await this.#bench.addon.download(block, 0, bytes, WAIT_MS);
    const isGuard = (from: number): boolean =>
      bytes.subarray(from, from + GUARD_BYTES).every((byte) => byte === GUARD_BYTE);
    expect(isGuard(0) && isGuard(byteOffset + buffer.byteLength), 'it wrote beside its elements');
    bytesOf(buffer).set(bytes.subarray(byteOffset, byteOffset + buffer.byteLength));
    return buffer as B;
  }

  /** Give everything back. @throws what an upload failed with */
  async close(): Promise<void> {
    for (const block of this.#blocks) this.#bench.addon.release(block);
    await Promise.all(this.#uploads);
  }
}

/** The same bits, but for those of a NaN, which a device may choose. */
export function expectElements(found: HostBuffer, expected: HostBuffer, what: string): void {
  if (isSameBits(found, expected)) return;
  const [values, wanted] = [numbersOf(found), numbersOf(expected)];
  const place = wanted.findIndex((value, i) => !Object.is(value, values[i]));
  if (place < 0 && values.length === wanted.length) return; // only NaNs differ
  throw new Error(`${what}: element ${place} of ${wanted.length} is ${values[place]}, expected ${wanted[place]}`);
}

function numbersOf(buffer: HostBuffer): number[] {
  return Array.from('toFloat32' in buffer ? buffer.toFloat32() : (buffer as ArrayLike<number | bigint>), Number);
}
