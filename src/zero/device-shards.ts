/**
 * State in the memory of the backend's device, stepped there by fused kernels.
 *
 * [Note: shards on a device] A piece goes up at its first step: its elements of the parameter, their float32 master, the
 * optimizer's buffers. A step uploads the gradient, updates all that on the device, and downloads the new elements into the
 * host part, which is gathered as ever. What a program has changed in the host part meanwhile goes up again first; it is told
 * by its bits, since not every way of writing to a parameter is reported. Loaded state stays on the host until the next step.
 */
import type { BackendDevice } from '../backend/backend-device';
import type { DeviceBuffer } from '../core/device-buffer';
import { UnsupportedError } from '../core/errors';
import type { FlatUpdate } from '../core/flat-update';
import { MASTER, masterOf, needsMaster, takeOverChanges } from '../optim/master-copy';
import { stateBuffer, type ParameterState } from '../optim/parameter-state';
import type { UpdateRule } from '../optim/update-rule';
import { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import { allOver, DevicePiece } from './device-piece';
import { flatTensor } from './flat-unit';
import { HostShards } from './host-shards';
import type { Piece } from './shard-plan';
import type { BuffersByName, PieceUpdate, ShardUpdater } from './shard-updater';

/** An update that is known to be possible. */
interface PlannedUpdate {
  readonly piece: Piece;
  readonly parameter: Storage;
  readonly gradient: Storage;
  readonly numbers: FlatUpdate;
  /** Of the buffers that it works on. */
  readonly names: readonly string[];
}

export class DeviceShards implements ShardUpdater {
  readonly #device: BackendDevice;
  readonly #onDevice = new Map<Piece, DevicePiece>();
  /** What has yet to go up: first masters, loaded state. A piece is there or here. */
  readonly #onHost = new HostShards();
  #last: Promise<unknown> = Promise.resolve();

  constructor(device: BackendDevice) {
    this.#device = device;
  }

  get deviceBytes(): number {
    return [...this.#onDevice.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  async update<Settings>(
    rule: UpdateRule<Settings>,
    updates: readonly PieceUpdate<Settings>[],
    factor: number,
  ): Promise<void> {
    const planned = updates.map((update) => planUpdate(rule, update, factor));
    await this.#oneByOne(async () => {
      for (const update of planned) {
        if (!this.#isReady(update)) await this.#bringUp(update);
      }
      await this.#step(planned);
    });
  }

  read(piece: Piece, parameter: Storage): Promise<BuffersByName> {
    return this.#oneByOne(async () => {
      const onDevice = this.#onDevice.get(piece);
      if (onDevice === undefined) return this.#onHost.read(piece, parameter);
      const copies = await onDevice.download();
      const master = copies[MASTER];
      if (master !== undefined) takeOverChanges(master as Float32Array, parameter);
      return copies;
    });
  }

  startMaster(piece: Piece, master: Tensor): void {
    this.#onHost.startMaster(piece, master);
  }

  replace(kept: ReadonlyMap<Piece, ParameterState>): void {
    for (const [piece, onDevice] of this.#onDevice) {
      if (onDevice.hasMaster && !kept.has(piece)) onDevice.dropState();
      else this.#release(piece, onDevice);
    }
    this.#onHost.replace(kept);
  }

  bringDown(): Promise<void> {
    return this.#oneByOne(async () => {
      for (const [piece, onDevice] of this.#onDevice) await this.#lower(piece, onDevice);
    });
  }

  /** All memory that is needed is there before the first update is issued: there may be none left. */
  async #step(updates: readonly PlannedUpdate[]): Promise<void> {
    const gradients: DeviceBuffer[] = [];
    try {
      for (const { gradient } of updates) gradients.push(this.#device.allocate(gradient.dtype, gradient.length));
      const calls = updates.flatMap(({ piece, gradient, numbers, names }, index) => {
        const uploaded = gradients[index] as DeviceBuffer;
        const arrival = this.#device.upload(gradient.buffer, uploaded);
        return [arrival, this.#at(piece).step(numbers, uploaded, names)];
      });
      await allOver(calls);
    } finally {
      for (const gradient of gradients) gradient.dispose();
    }
    for (const { piece, parameter } of updates) this.#at(piece).land(parameter);
  }

  #isReady({ piece, parameter, names }: PlannedUpdate): boolean {
    const onDevice = this.#onDevice.get(piece);
    return onDevice !== undefined && onDevice.hasAll(names) && onDevice.isUpToDate(parameter);
  }

  async #bringUp({ piece, parameter, names }: PlannedUpdate): Promise<void> {
    const onDevice = this.#onDevice.get(piece);
    if (onDevice?.hasAll(names) === true) return onDevice.follow(parameter);
    if (onDevice !== undefined) await this.#lower(piece, onDevice); // other settings, which need other buffers
    const kept = this.#onHost.keptOf(piece);
    const shape = [piece.length];
    for (const name of names) stateBuffer(kept, name, parameter.dtype, shape);
    if (needsMaster(parameter.dtype)) masterOf(kept, parameter, shape);
    this.#onDevice.set(piece, await DevicePiece.upload(this.#device, parameter, kept));
    this.#onHost.drop(piece);
  }

  async #lower(piece: Piece, onDevice: DevicePiece): Promise<void> {
    const { buffers } = this.#onHost.keptOf(piece);
    for (const [name, copy] of Object.entries(await onDevice.download())) {
      buffers[name] = flatTensor(Storage.of(copy, 'optimizer'));
    }
    this.#release(piece, onDevice);
  }

  #release(piece: Piece, onDevice: DevicePiece): void {
    onDevice.dispose();
    this.#onDevice.delete(piece);
  }

  #at(piece: Piece): DevicePiece {
    return this.#onDevice.get(piece) as DevicePiece;
  }

  /** A state that is saved, say, is never that of the middle of a step. */
  #oneByOne<T>(run: () => Promise<T>): Promise<T> {
    const result = this.#last.then(run);
    this.#last = result.catch(() => undefined);
    return result;
  }
}

/** @throws UnsupportedError for what zeroWrap could not know: settings that were changed, a parameter that was added */
function planUpdate<Settings>(
  rule: UpdateRule<Settings>,
  { piece, parameter, gradient, settings, step }: PieceUpdate<Settings>,
  factor: number,
): PlannedUpdate {
  const numbers = rule.flatUpdate?.(settings, step);
  if (numbers === undefined || parameter.dtype === 'float64') {
    throw new UnsupportedError(
      `optimizer.step(): a parameter of ${parameter.dtype} with the settings ${JSON.stringify(settings)} cannot be updated on a device: ${numbers === undefined ? `flatUpdate of ${rule.constructor.name} gives undefined for them` : 'kernels compute in float32'}. Call zeroWrap with shardDevice 'cpu'.`,
      { op: 'optimizer.step()' },
    );
  }
  const scaled = { ...numbers, gradientScale: numbers.gradientScale * factor };
  return { piece, parameter, gradient, numbers: scaled, names: rule.stateNames(settings) };
}
