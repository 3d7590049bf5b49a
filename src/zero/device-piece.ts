import type { BackendDevice } from '../backend/backend-device';
import { allocateBuffer, copyBuffer, dtypeOf, isSameBits, type HostBuffer } from '../core/dtype';
import type { DeviceBuffer } from '../core/device-buffer';
import type { FlatUpdate } from '../core/flat-update';
import { MASTER, takeOverChanges } from '../optim/master-copy';
import type { ParameterState } from '../optim/parameter-state';
import { type Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import { flatTensor } from './flat-unit';
import type { BuffersByName } from './shard-updater';

/** One piece in device memory: elements of the parameter, their master if they have 16 bits, and the optimizer's buffers. */
export class DevicePiece {
  readonly #device: BackendDevice;
  readonly #parameter: DeviceBuffer;
  /** By name, the master too. */
  readonly #buffers: Map<string, DeviceBuffer>;
  /** The parameter's bits as the device has them: other bits in the host part are a program's. New ones arrive here. */
  readonly #arrived: Tensor;

  private constructor(
    device: BackendDevice,
    parameter: DeviceBuffer,
    buffers: Map<string, DeviceBuffer>,
    copy: Tensor,
  ) {
    this.#device = device;
    this.#parameter = parameter;
    this.#buffers = buffers;
    this.#arrived = copy;
  }

  /** Copies of `parameter` and of the buffers that are kept of it. @throws NativeError, with nothing left on the device */
  static async upload(device: BackendDevice, parameter: Storage, kept: ParameterState): Promise<DevicePiece> {
    const made: DeviceBuffer[] = [];
    const uploads: Promise<void>[] = [];
    const upload = (source: HostBuffer): DeviceBuffer => {
      const target = device.allocate(dtypeOf(source), source.length);
      made.push(target);
      uploads.push(device.upload(source, target));
      return target;
    };
    try {
      const own = upload(parameter.buffer);
      const buffers = new Map(
        Object.entries(kept.buffers).map(([name, { storage }]) => [name, upload(storage.buffer)] as const),
      );
      await allOver(uploads);
      return new DevicePiece(device, own, buffers, flatTensor(parameter.clone('optimizer')));
    } catch (error) {
      await Promise.allSettled(uploads); // they read host memory until then
      for (const buffer of made) buffer.dispose();
      throw error;
    }
  }

  get bytes(): number {
    return [this.#parameter, ...this.#buffers.values()].reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  get hasMaster(): boolean {
    return this.#buffers.has(MASTER);
  }

  hasAll(names: readonly string[]): boolean {
    return names.every((name) => this.#buffers.has(name));
  }

  /** Whether the device has the bits that `parameter` has. */
  isUpToDate(parameter: Storage): boolean {
    return isSameBits(this.#arrived.storage.buffer, parameter.buffer);
  }

  /** Take over what a program has written into `parameter`, see [Note: truth of a parameter] and [Note: master copies]. */
  async follow(parameter: Storage): Promise<void> {
    const master = this.#buffers.get(MASTER);
    if (master !== undefined) {
      const values = allocateBuffer('float32', master.length);
      await this.#device.download(master, values);
      takeOverChanges(values, parameter);
      await this.#device.upload(values, master);
    }
    await this.#device.upload(parameter.buffer, this.#parameter);
    copyBuffer(this.#arrived.storage.buffer, parameter.buffer);
  }

  /** Issue one update and the way back of what it computes, before it returns; when they are over, `land` it. */
  async step(update: FlatUpdate, gradient: DeviceBuffer, names: readonly string[]): Promise<void> {
    const state = Object.fromEntries(names.map((name) => [name, this.#buffers.get(name) as DeviceBuffer]));
    const master = this.#buffers.get(MASTER);
    this.#device.update(update, { parameter: this.#parameter, gradient, master, state });
    await this.#device.download(this.#parameter, this.#arrived.storage.buffer);
  }

  /** Put what has arrived into `parameter`. The caller reports the change. */
  land(parameter: Storage): void {
    copyBuffer(parameter.buffer, this.#arrived.storage.buffer);
  }

  /** Copies of all buffers, in host memory. */
  async download(): Promise<BuffersByName> {
    const copies = [...this.#buffers].map(([name, source]) => {
      const copy = allocateBuffer(source.dtype, source.length);
      return { name, copy, arrival: this.#device.download(source, copy) };
    });
    await allOver(copies.map(({ arrival }) => arrival));
    return Object.fromEntries(copies.map(({ name, copy }) => [name, copy]));
  }

  /** Keep the parameter and its master alone. */
  dropState(): void {
    for (const [name, buffer] of this.#buffers) {
      if (name === MASTER) continue;
      buffer.dispose();
      this.#buffers.delete(name);
    }
  }

  dispose(): void {
    for (const buffer of [this.#parameter, ...this.#buffers.values()]) buffer.dispose();
    this.#arrived.dispose();
  }
}

/** Settles when all have: they are at work on memory until then. @throws the first failure */
export async function allOver(calls: readonly Promise<void>[]): Promise<void> {
  await Promise.allSettled(calls);
  await Promise.all(calls);
}
