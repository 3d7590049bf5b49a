import { isDeviceBuffer, type DeviceBuffer } from '../../core/device-buffer';
import {
  byteSize,
  bytesOf,
  dtypeOf,
  isDType,
  isDetached,
  isHalfDType,
  type DType,
  type HostBuffer,
} from '../../core/dtype';
import { ClosedError, InvalidArgumentError } from '../../core/errors';
import type { FlatUpdate } from '../../core/flat-update';
import type { Logger } from '../../core/logger';
import type { BackendDevice, FlatUpdateTarget } from '../backend-device';
import { describeArgument, overlapStart } from '../check-arguments';
import type { NcclAddon } from './addon';
import { downloadBytes, uploadBytes } from './host-copies';
import type { DeviceElements } from './kernel-launch';
import { updateKernel } from './kernel-updates';
import { nativeError } from './native-failure';
import { NcclBuffer } from './nccl-buffer';
import type { OpenDevice } from './open-device';

export interface NcclDeviceOptions {
  /** Milliseconds that a copy between host and device may take. */
  readonly timeoutMs: number;
  /** For messages: the world's rank. */
  readonly rank: number;
  /** Told of buffers that were forgotten. */
  readonly logger: Logger;
}

/** The device of one world. Its buffers may be used by every world of this process on the same device. */
export class NcclDevice implements BackendDevice {
  readonly #device: OpenDevice;
  readonly #options: NcclDeviceOptions;
  #isClosed = false;

  constructor(device: OpenDevice, options: NcclDeviceOptions) {
    this.#device = device;
    this.#options = options;
  }

  get name(): string {
    return this.#device.name;
  }

  allocate(dtype: DType, length: number): NcclBuffer {
    this.#checkOpen('allocate');
    if (!isDType(dtype)) throw new InvalidArgumentError(`allocate: expected a dtype, got ${describeArgument(dtype)}.`);
    const most = Math.floor(Number.MAX_SAFE_INTEGER / byteSize(dtype));
    if (!Number.isSafeInteger(length) || length < 0 || length > most) {
      throw new InvalidArgumentError(
        `allocate: expected a whole number of elements from 0 to ${most}, got ${describeArgument(length)}.`,
      );
    }
    return this.#guarded(`allocate ${dtype}[${length}]`, () =>
      NcclBuffer.allocate(this.#device, dtype, length, this.#options.logger),
    );
  }

  async upload(source: HostBuffer, target: DeviceBuffer): Promise<void> {
    const place = this.#checkCopy('upload', { source, target });
    await this.#guardedAsync(`upload ${place.dtype}[${place.length}]`, () =>
      uploadBytes({ ...this.#copyOptions, place, bytes: bytesOf(source) }),
    );
  }

  async download(source: DeviceBuffer, target: HostBuffer): Promise<void> {
    const place = this.#checkCopy('download', { target, source });
    await this.#guardedAsync(`download ${place.dtype}[${place.length}]`, () =>
      downloadBytes({ ...this.#copyOptions, place, bytes: bytesOf(target) }),
    );
  }

  copy(source: DeviceBuffer, target: DeviceBuffer): void {
    this.#checkOpen('copy');
    const [from, to] = [this.#elements('copy: source', source), this.#elements('copy: target', target)];
    checkFits('copy: target', to, from, 'source');
    if (source.byteLength === 0 || overlapStart(source, target) === 0) return; // there is nothing to copy
    refuseSharing('copy', { source, target });
    const { addon } = this.#device;
    this.#guarded(`copy ${from.dtype}[${from.length}]`, () => {
      addon.copy(to.block, to.byteOffset, from.block, from.byteOffset, source.byteLength);
    });
  }

  update(update: FlatUpdate, { parameter, gradient, master, state }: FlatUpdateTarget): void {
    this.#checkOpen('update');
    checkNumbers(update);
    const target = {
      parameter: this.#elements('update: parameter', parameter),
      gradient: this.#elements('update: gradient', gradient),
      master: master === undefined ? undefined : this.#elements('update: master', master),
      state: Object.fromEntries(
        Object.entries(state).map(([name, buffer]) => [name, this.#elements(`update: state ${name}`, buffer)]),
      ),
    };
    checkUpdate(update, target);
    refuseSharing('update', { parameter, gradient, ...(master !== undefined && { master }), ...state });
    if (parameter.length === 0) return;
    this.#guarded(`update ${parameter.dtype}[${parameter.length}]`, () => {
      const { kernel, gridSize, blockSize, args } = updateKernel(update, target);
      this.#device.addon.launch(this.#device.handle, kernel, gridSize, blockSize, args);
    });
  }

  /** Of the world; buffers stay usable by other worlds on the same device. */
  close(): void {
    this.#isClosed = true;
  }

  get #copyOptions(): { readonly addon: NcclAddon; readonly timeoutMs: number } {
    return { addon: this.#device.addon, timeoutMs: this.#options.timeoutMs };
  }

  #checkOpen(op: string): void {
    if (!this.#isClosed) return;
    throw new ClosedError(`${op} on ${this.name}: this rank has closed its world. Make a new one.`, {
      op,
      rank: this.#options.rank,
    });
  }

  /** One of the two is a host buffer; where the other is. */
  #checkCopy(op: string, { source, target }: { readonly source: unknown; readonly target: unknown }): DeviceElements {
    this.#checkOpen(op);
    const [hostName, deviceName] = op === 'upload' ? (['source', 'target'] as const) : (['target', 'source'] as const);
    const [host, device] = op === 'upload' ? [source, target] : [target, source];
    const hostDType = dtypeOf(host, `${op}: ${hostName}`);
    if (isDeviceBuffer(host)) throw new InvalidArgumentError(`${op}: ${hostName}: expected a host buffer. Use copy.`);
    if (isDetached(host as HostBuffer)) {
      throw new InvalidArgumentError(`${op}: ${hostName}: the buffer is detached. Pass a live one.`);
    }
    const place = this.#elements(`${op}: ${deviceName}`, device);
    const given = { dtype: hostDType, length: (host as HostBuffer).length };
    checkFits(`${op}: ${hostName}`, given, place, deviceName);
    return place;
  }

  #elements(what: string, buffer: unknown): DeviceElements {
    if (!isDeviceBuffer(buffer)) {
      throw new InvalidArgumentError(`${what}: expected a device buffer, got ${describeArgument(buffer)}.`);
    }
    NcclBuffer.check(buffer, this.#device, what);
    return { ...buffer.place, dtype: buffer.dtype, length: buffer.length };
  }

  #guarded<T>(what: string, act: () => T): T {
    try {
      return act();
    } catch (thrown) {
      throw this.#error(what, thrown);
    }
  }

  async #guardedAsync(what: string, act: () => Promise<void>): Promise<void> {
    try {
      await act();
    } catch (thrown) {
      throw this.#error(what, thrown);
    }
  }

  #error(what: string, thrown: unknown): Error {
    const { rank } = this.#options;
    const [op] = what.split(' ');
    return nativeError(thrown, `${what}, on rank ${rank}`, this.#device, { op, rank });
  }
}

interface Extent {
  readonly dtype: DType;
  readonly length: number;
}

function checkFits(what: string, { dtype, length }: Extent, expected: Extent, otherName: string): void {
  if (dtype === expected.dtype && length === expected.length) return;
  throw new InvalidArgumentError(
    `${what}: expected ${expected.dtype}[${expected.length}] like ${otherName}, got ${dtype}[${length}].`,
  );
}

/** Where memory is written while it is read, what comes out depends on which thread is there first. */
function refuseSharing(op: string, buffers: Readonly<Record<string, DeviceBuffer>>): void {
  const named = Object.entries(buffers);
  for (const [index, [name, buffer]] of named.entries()) {
    const other = named.slice(0, index).find(([, earlier]) => overlapStart(buffer, earlier) !== undefined);
    if (other === undefined) continue;
    throw new InvalidArgumentError(`${op}: ${name} and ${other[0]} share memory. Give each its own.`);
  }
}

const NUMBERS: Readonly<Record<FlatUpdate['kind'], readonly string[]>> = {
  adam: ['beta1', 'beta2', 'eps', 'penalty', 'keep', 'stepSize', 'rootScale', 'gradientScale'],
  sgd: ['lr', 'momentum', 'taken', 'weightDecay', 'gradientScale'],
};

/** An optimizer of somebody's may have left one out. */
function checkNumbers(update: FlatUpdate): void {
  if (!Object.hasOwn(NUMBERS, update.kind)) {
    throw new InvalidArgumentError(`update: kind: expected adam or sgd, got ${describeArgument(update.kind)}.`);
  }
  for (const name of NUMBERS[update.kind]) {
    const value = (update as unknown as Readonly<Record<string, unknown>>)[name];
    if (typeof value === 'number') continue;
    throw new InvalidArgumentError(`update: ${name}: expected a number, got ${describeArgument(value)}.`);
  }
}

/** The state that each rule changes, by name. */
function stateNames(update: FlatUpdate): readonly string[] {
  if (update.kind === 'adam') return ['expAvg', 'expAvgSq'];
  return update.momentum === 0 ? [] : ['momentumBuffer'];
}

interface UpdateTarget {
  readonly parameter: Extent;
  readonly gradient: Extent;
  readonly master: Extent | undefined;
  readonly state: Readonly<Record<string, Extent>>;
}

function checkUpdate(update: FlatUpdate, { parameter, gradient, master, state }: UpdateTarget): void {
  for (const [name, { dtype }] of Object.entries({ parameter, gradient })) {
    if (dtype === 'float32' || isHalfDType(dtype)) continue;
    throw new InvalidArgumentError(`update: ${name}: expected float32, float16 or bfloat16, got ${dtype}.`);
  }
  const { length } = parameter;
  const whole: Extent = { dtype: 'float32', length };
  checkFits('update: gradient', gradient, { dtype: gradient.dtype, length }, 'parameter');
  if (master !== undefined) {
    if (!isHalfDType(parameter.dtype)) {
      throw new InvalidArgumentError('update: master: a float32 parameter has no master copy. Leave it out.');
    }
    checkFits('update: master', master, whole, 'parameter, in float32');
  }
  for (const name of stateNames(update)) {
    const held = state[name];
    if (held === undefined) throw new InvalidArgumentError(`update: state: the rule '${update.kind}' needs ${name}.`);
    checkFits(`update: state ${name}`, held, whole, 'parameter, in float32');
  }
}
