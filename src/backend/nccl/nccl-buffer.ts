/** Device memory as programs hold it. */
import { inspect } from 'node:util';
import { DEVICE_BUFFER_BRAND, type DeviceBuffer } from '../../core/device-buffer';
import { byteSize, type DType } from '../../core/dtype';
import { InvalidArgumentError } from '../../core/errors';
import { stderrLogger, type Logger } from '../../core/logger';
import type { Block } from './addon';
import type { OpenDevice } from './open-device';
import type { Operand } from './operations';

/** A block of device memory, which lives as long as a buffer on it does. */
class DeviceMemory {
  readonly device: OpenDevice;
  readonly block: Block;
  readonly #logger: Logger;
  #numBuffers = 0;

  constructor(device: OpenDevice, byteLength: number, logger: Logger) {
    this.device = device;
    this.block = device.addon.allocate(device.handle, byteLength);
    this.#logger = logger;
  }

  hold(): this {
    this.#numBuffers += 1;
    return this;
  }

  letGo(): void {
    this.#numBuffers -= 1;
    if (this.#numBuffers === 0) this.device.addon.release(this.block);
  }

  /** A buffer was forgotten: it is no error of the run, but its memory came back by luck. */
  noteForgotten(byteLength: number): void {
    const { device } = this;
    this.letGo();
    if (!warnedDevices.has(device) && !device.isClosed) {
      warnedDevices.add(device);
      this.#logger.warn(
        `a buffer of ${byteLength} bytes on ${device.name} was garbage collected before it was disposed of. Call dispose() when a buffer is no longer needed: the collector does not see how much device memory it holds. (Said once for each device.)`,
      );
    }
  }
}

const warnedDevices = new WeakSet<OpenDevice>();

/** A net, not the plan. It runs when JavaScript has time, and only gives a reference back: it never waits for a device. */
const forgotten = new FinalizationRegistry<{ readonly memory: DeviceMemory; readonly byteLength: number }>(
  ({ memory, byteLength }) => memory.noteForgotten(byteLength),
);

export class NcclBuffer implements DeviceBuffer {
  readonly [DEVICE_BUFFER_BRAND] = true;
  readonly dtype: DType;
  readonly length: number;
  readonly byteOffset: number;
  readonly #memory: DeviceMemory;
  #isDisposed = false;

  private constructor(memory: DeviceMemory, dtype: DType, byteOffset: number, length: number) {
    this.dtype = dtype;
    this.length = length;
    this.byteOffset = byteOffset;
    this.#memory = memory.hold();
    forgotten.register(this, { memory, byteLength: this.byteLength }, this);
  }

  /**
   * @param logger told of buffers that are forgotten
   * @throws NativeFailure where there is no memory left
   */
  static allocate(device: OpenDevice, dtype: DType, length: number, logger: Logger = stderrLogger): NcclBuffer {
    const memory = new DeviceMemory(device, length * byteSize(dtype), logger);
    return new NcclBuffer(memory, dtype, 0, length);
  }

  get device(): string {
    return this.#memory.device.name;
  }

  get byteLength(): number {
    return this.length * byteSize(this.dtype);
  }

  get memory(): object {
    return this.#memory;
  }

  get isDisposed(): boolean {
    return this.#isDisposed || this.#memory.device.isClosed;
  }

  view(start: number, length: number): NcclBuffer {
    if (this.isDisposed) throw new InvalidArgumentError(`view: ${disposedText(this.device)}`);
    const isInside = Number.isSafeInteger(start) && Number.isSafeInteger(length) && start >= 0 && length >= 0;
    if (!isInside || start + length > this.length) {
      throw new InvalidArgumentError(
        `view: expected a part of ${this.length} elements, got ${length} elements from element ${start}.`,
      );
    }
    return new NcclBuffer(this.#memory, this.dtype, this.byteOffset + start * byteSize(this.dtype), length);
  }

  dispose(): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    forgotten.unregister(this);
    this.#memory.letGo();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  [inspect.custom](): string {
    const state = this.isDisposed ? ', disposed' : '';
    return `DeviceBuffer <${this.dtype}[${this.length}] on ${this.device}${state}>`;
  }

  /** @throws InvalidArgumentError unless `buffer` is memory of `device` that is in use */
  static check(buffer: DeviceBuffer, device: OpenDevice, what: string): asserts buffer is NcclBuffer {
    if (!(#memory in buffer)) {
      throw new InvalidArgumentError(
        `${what}: this device buffer was made by another copy of Lockstep. Make it by the device of this backend.`,
      );
    }
    if (buffer.isDisposed) throw new InvalidArgumentError(`${what}: ${disposedText(buffer.device)}`);
    if (buffer.#memory.device !== device) {
      throw new InvalidArgumentError(
        `${what}: expected a buffer on ${device.name}, this rank's device, got one on ${buffer.device}. Copy it through host memory.`,
      );
    }
  }

  /** Where it is. The memory stays as long as the buffer, or who calls this, holds it. */
  get place(): Operand {
    return { block: this.#memory.block, byteOffset: this.byteOffset };
  }

  /** Keep the memory until the returned function is called. */
  hold(): () => void {
    const memory = this.#memory.hold();
    return () => memory.letGo();
  }
}

function disposedText(device: string): string {
  return `the device buffer has been disposed of, or ${device} was closed with the last world that used it.`;
}
