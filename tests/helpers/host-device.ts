/** A device over host memory, for tests: as late, as strict and as forgetful as a real one. */
import type { Backend } from '../../src/backend/backend';
import type { BackendDevice, FlatUpdateTarget } from '../../src/backend/backend-device';
import { DEVICE_BUFFER_BRAND, type DeviceBuffer } from '../../src/core/device-buffer';
import {
  allocateBuffer,
  byteSize,
  bytesOf,
  copyBuffer,
  dtypeOf,
  viewBuffer,
  type DType,
  type HostBuffer,
} from '../../src/core/dtype';
import { InvalidArgumentError, NativeError } from '../../src/core/errors';
import type { FlatUpdate } from '../../src/core/flat-update';
import { World } from '../../src/process-group/world';
import { runWorld, type RunWorldOptions } from '../../src/testing/index';
import { runFlatUpdate, type Arithmetic } from './flat-update-loops';

/** NaN in every floating point format. */
const POISON = 0xff;

export interface HostDeviceOptions {
  /** Default 'float32', as kernels compute; 'float64' has the bits of the optimizers' own loops. */
  readonly arithmetic?: Arithmetic | undefined;
  /** Bytes of memory; default: as much as there is. */
  readonly capacity?: number | undefined;
}

/** One piece of memory: poisoned when nobody holds it any more, neither a buffer nor a call that is still to run. */
class Block {
  readonly buffer: HostBuffer;
  #holders = 0;

  constructor(
    readonly device: HostDevice,
    dtype: DType,
    length: number,
  ) {
    this.buffer = allocateBuffer(dtype, length);
    bytesOf(this.buffer).fill(POISON);
  }

  hold(): void {
    this.#holders++;
  }

  release(): void {
    if (--this.#holders > 0) return;
    bytesOf(this.buffer).fill(POISON);
    this.device.forget(this);
  }
}

class HostDeviceBuffer implements DeviceBuffer {
  readonly [DEVICE_BUFFER_BRAND] = true;
  readonly device: string;
  #isDisposed = false;

  constructor(
    readonly memory: Block,
    readonly dtype: DType,
    readonly start: number,
    readonly length: number,
  ) {
    this.device = memory.device.name;
    memory.hold();
  }

  get byteLength(): number {
    return this.length * byteSize(this.dtype);
  }

  get byteOffset(): number {
    return this.start * byteSize(this.dtype);
  }

  get isDisposed(): boolean {
    return this.#isDisposed;
  }

  get elements(): HostBuffer {
    return viewBuffer(this.memory.buffer, this.start, this.length);
  }

  view(start: number, length: number): DeviceBuffer {
    return new HostDeviceBuffer(this.memory, this.dtype, this.start + start, length);
  }

  dispose(): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.memory.release();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

interface Command {
  readonly buffers: readonly HostDeviceBuffer[];
  readonly run: () => void;
  readonly settle?: ((error?: Error) => void) | undefined;
}

/**
 * Calls run in order, in a later turn of the event loop: memory that the caller touches before it may is seen changed. Memory
 * is poison until written to, and again once it is free.
 */
export class HostDevice implements BackendDevice {
  readonly name = 'cuda:0';
  readonly #arithmetic: Arithmetic;
  /** Bytes of memory; may be changed. */
  capacity: number;
  readonly #blocks = new Set<Block>();
  readonly #commands: Command[] = [];
  #deferred: Error | undefined;
  #failure: Error | undefined;
  bytesUploaded = 0;
  bytesDownloaded = 0;
  numUpdates = 0;

  constructor({ arithmetic = 'float32', capacity = Infinity }: HostDeviceOptions = {}) {
    this.#arithmetic = arithmetic;
    this.capacity = capacity;
  }

  get bytesInUse(): number {
    return [...this.#blocks].reduce((sum, { buffer }) => sum + buffer.byteLength, 0);
  }

  /** Every later upload, download and update fails. */
  break(reason: string): void {
    this.#failure = new NativeError(reason);
  }

  allocate(dtype: DType, length: number): DeviceBuffer {
    const wanted = length * byteSize(dtype);
    if (this.bytesInUse + wanted > this.capacity) {
      throw new NativeError(`${this.name}: no memory left for ${wanted} bytes; ${this.bytesInUse} are in use`);
    }
    const block = new Block(this, dtype, length);
    this.#blocks.add(block);
    return new HostDeviceBuffer(block, dtype, 0, length);
  }

  /** @internal For its memory. */
  forget(block: Block): void {
    this.#blocks.delete(block);
  }

  upload(source: HostBuffer, target: DeviceBuffer): Promise<void> {
    return this.#issue([target], (own) => {
      requireFit(source, own);
      this.bytesUploaded += source.byteLength;
      return () => copyBuffer(own.elements, source);
    });
  }

  download(source: DeviceBuffer, target: HostBuffer): Promise<void> {
    return this.#issue([source], (own) => {
      requireFit(target, own);
      this.bytesDownloaded += target.byteLength;
      return () => copyBuffer(target, own.elements);
    });
  }

  copy(source: DeviceBuffer, target: DeviceBuffer): void {
    this.#defer([source, target], (from, to) => {
      requireFit(from.elements, to);
      return () => copyBuffer(to.elements, from.elements);
    });
  }

  update(update: FlatUpdate, { parameter, gradient, master, state }: FlatUpdateTarget): void {
    const names = Object.keys(state);
    const masters = master === undefined ? [] : [master];
    const buffers = [parameter, gradient, ...masters, ...Object.values(state)];
    this.#defer(buffers, (...own) => {
      this.numUpdates++;
      const [values, slopes, ...others] = own.map(({ elements }) => elements) as [HostBuffer, HostBuffer];
      const kept: readonly HostBuffer[] = others;
      const target = {
        parameter: values,
        gradient: slopes,
        master: kept[masters.length - 1],
        state: Object.fromEntries(names.map((name, index) => [name, kept[masters.length + index] as HostBuffer])),
      };
      return () => runFlatUpdate(update, target, this.#arithmetic);
    });
  }

  #defer(buffers: readonly DeviceBuffer[], prepare: (...own: HostDeviceBuffer[]) => () => void): void {
    try {
      const own = this.#own(buffers);
      this.#enqueue({ buffers: own, run: prepare(...own) });
    } catch (error) {
      this.#deferred ??= error as Error;
    }
  }

  async #issue(buffers: readonly DeviceBuffer[], prepare: (own: HostDeviceBuffer) => () => void): Promise<void> {
    const [own] = this.#own(buffers) as [HostDeviceBuffer];
    const run = prepare(own);
    await new Promise<void>((resolve, reject) => {
      const settle = (error?: Error): void => (error === undefined ? resolve() : reject(error));
      this.#enqueue({ buffers: [own], run, settle });
    });
  }

  #own(buffers: readonly DeviceBuffer[]): HostDeviceBuffer[] {
    return buffers.map((buffer) => {
      if (!(buffer instanceof HostDeviceBuffer) || buffer.memory.device !== this) {
        throw new InvalidArgumentError(`${this.name}: a buffer of another device`);
      }
      if (buffer.isDisposed) throw new InvalidArgumentError(`${this.name}: a buffer that was disposed of`);
      return buffer;
    });
  }

  #enqueue(command: Command): void {
    for (const { memory } of command.buffers) memory.hold();
    this.#commands.push(command);
    if (this.#commands.length === 1) setImmediate(() => this.#drain());
  }

  #drain(): void {
    for (const { buffers, run, settle } of this.#commands.splice(0)) {
      let error = this.#failure ?? this.#deferred;
      if (settle !== undefined) this.#deferred = undefined;
      try {
        if (error === undefined) run();
      } catch (thrown) {
        if (settle === undefined) this.#deferred = thrown as Error;
        else error = thrown as Error;
      }
      for (const { memory } of buffers) memory.release();
      settle?.(error);
    }
  }
}

function requireFit(host: HostBuffer, { dtype, length }: HostDeviceBuffer): void {
  if (dtypeOf(host) === dtype && host.length === length) return;
  throw new InvalidArgumentError(`${dtypeOf(host)} [${host.length}] against ${dtype} [${length}]`);
}

/** The same backend, with a device; its subgroups have it too. */
export function withDevice(backend: Backend, device: BackendDevice): Backend {
  return new Proxy(backend, {
    get(target, property): unknown {
      if (property === 'device') return device;
      const value: unknown = Reflect.get(target, property, target); // private fields are the target's
      if (typeof value !== 'function') return value;
      if (property !== 'split') return value.bind(target) as unknown;
      return async (...args: Parameters<Backend['split']>): Promise<Backend | undefined> => {
        const child = await target.split(...args);
        return child === undefined ? undefined : withDevice(child, device);
      };
    },
    has: (target, property) => property === 'device' || Reflect.has(target, property),
  });
}

/** A mock world in which each rank has a device of its own. */
export function runOnDevices<R>(
  size: number,
  program: (world: World, device: HostDevice) => Promise<R>,
  { arithmetic, capacity, ...options }: HostDeviceOptions & RunWorldOptions = {},
): Promise<R[]> {
  return runWorld(
    size,
    (_world, backend) => {
      const device = new HostDevice({ arithmetic, capacity });
      return program(World.fromBackend(withDevice(backend, device)), device);
    },
    options,
  );
}
