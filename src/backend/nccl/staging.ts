import { isDeviceBuffer } from '../../core/device-buffer';
import { bytesOf, type DataBuffer, type HostBuffer } from '../../core/dtype';
import { overlapStart } from '../check-arguments';
import type { Block } from './addon';
import { downloadBytes, uploadBytes } from './host-copies';
import { NcclBuffer } from './nccl-buffer';
import type { OpenDevice } from './open-device';
import type { CollectiveOperands, Operand } from './operations';

interface Copy extends Operand {
  readonly bytes: Uint8Array;
}

/**
 * Where the buffers of one call are on the device: device buffers where they are, host buffers in memory for the time of the
 * call. Results reach host memory by `download` alone, so that a call that fails leaves it as it was.
 */
export class Staging {
  readonly #device: OpenDevice;
  /** Gives back what the call holds. */
  readonly #held: (() => void)[] = [];
  readonly #uploads: Copy[] = [];
  readonly #downloads: Copy[] = [];

  constructor(device: OpenDevice) {
    this.#device = device;
  }

  /**
   * Both buffers of a collective. Where one is a part of the other, so it is on the device.
   * @throws NativeFailure where there is no memory left
   */
  place(send: DataBuffer | undefined, recv: DataBuffer | undefined): CollectiveOperands {
    const whole = wholeOf(send, recv);
    if (whole === undefined) {
      return { send: this.#own(send, this.#uploads), recv: this.#own(recv, this.#downloads) };
    }
    const block = this.#allocate(whole.byteLength);
    const placed = (part: HostBuffer, copies: Copy[]): Operand => {
      const operand = { block, byteOffset: part.byteOffset - whole.byteOffset };
      copies.push({ ...operand, bytes: bytesOf(part) });
      return operand;
    };
    return { send: placed(send as HostBuffer, this.#uploads), recv: placed(recv as HostBuffer, this.#downloads) };
  }

  /** The buffer of one send or receive. */
  placeMessage(op: 'send' | 'recv', data: DataBuffer): Operand | undefined {
    return this.#own(data, op === 'send' ? this.#uploads : this.#downloads);
  }

  /** Begin to copy what this rank contributes to the device; what is given to the device later finds it there. */
  upload(timeoutMs: number): Promise<void>[] {
    const { addon } = this.#device;
    // async: what one of them throws must not leave the others without a listener
    return this.#uploads.map(async ({ bytes, ...place }) => uploadBytes({ addon, place, bytes, timeoutMs }));
  }

  /** Copy the results to host buffers. Nothing writes to these any more when the promise has settled. */
  async download(timeoutMs: number): Promise<void> {
    const { addon } = this.#device;
    const copies = this.#downloads.map(({ bytes, ...place }) => downloadBytes({ addon, place, bytes, timeoutMs }));
    const failed = (await Promise.allSettled(copies)).find(({ status }) => status === 'rejected');
    if (failed !== undefined) throw (failed as PromiseRejectedResult).reason;
  }

  /** True if results go to host buffers. */
  get hasDownloads(): boolean {
    return this.#downloads.length > 0;
  }

  /** Idempotent. What is in flight keeps its memory. */
  release(): void {
    for (const letGo of this.#held.splice(0)) letGo();
  }

  #own(buffer: DataBuffer | undefined, copies: Copy[]): Operand | undefined {
    if (buffer === undefined) return undefined;
    if (isDeviceBuffer(buffer)) {
      NcclBuffer.check(buffer, this.#device, 'buffer');
      this.#held.push(buffer.hold());
      return buffer.place;
    }
    if (buffer.byteLength === 0) return undefined;
    const operand = { block: this.#allocate(buffer.byteLength), byteOffset: 0 };
    copies.push({ ...operand, bytes: bytesOf(buffer) });
    return operand;
  }

  #allocate(byteLength: number): Block {
    const { addon, handle } = this.#device;
    const block = addon.allocate(handle, byteLength);
    this.#held.push(() => addon.release(block));
    return block;
  }
}

/** Of two host buffers that share memory the longer one, of which the other is a part. */
function wholeOf(send: DataBuffer | undefined, recv: DataBuffer | undefined): HostBuffer | undefined {
  if (send === undefined || recv === undefined || isDeviceBuffer(send) || isDeviceBuffer(recv)) return undefined;
  if (overlapStart(send, recv) === undefined) return undefined;
  return send.byteLength >= recv.byteLength ? send : recv;
}
