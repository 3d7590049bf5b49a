/** A device that this process has opened: one for all worlds that use it. */
import type { Communicator, Device, NcclAddon } from './addon';
import { LaunchQueue } from './launch-queue';

/** Devices in use, or being opened, by index, of each copy of the addon. */
const openDevices = new WeakMap<NcclAddon, Map<number, Promise<OpenDevice>>>();

export class OpenDevice {
  readonly addon: NcclAddon;
  readonly index: number;
  readonly handle: Device;
  /** Of all groups: [Note: order of launches]. */
  readonly launches = new LaunchQueue();
  #users = 1;
  #closing: Promise<void> | undefined;
  #aborting: Communicator[] = [];

  private constructor(addon: NcclAddon, index: number, handle: Device) {
    this.addon = addon;
    this.index = index;
    this.handle = handle;
  }

  /**
   * Each call of `open` wants one of `close`.
   * @throws NativeFailure where the device cannot be opened
   */
  static async open(addon: NcclAddon, index: number, ptx?: string): Promise<OpenDevice> {
    let devices = openDevices.get(addon);
    if (devices === undefined) openDevices.set(addon, (devices = new Map<number, Promise<OpenDevice>>()));
    for (let known = devices.get(index); known !== undefined; known = devices.get(index)) {
      const device = await known;
      if (device.#closing === undefined) {
        device.#users += 1;
        return device;
      }
      await device.#closing.catch(() => undefined); // who closed it is told
    }
    const opening = addon.openDevice(index, { ptx }).then((handle) => new OpenDevice(addon, index, handle));
    devices.set(index, opening);
    try {
      return await opening;
    } catch (error) {
      devices.delete(index);
      throw error;
    }
  }

  get name(): string {
    return `cuda:${this.index}`;
  }

  /** Its memory is gone. */
  get isClosed(): boolean {
    return this.#closing !== undefined;
  }

  /** The last user closes the device, and with it all buffers that are left. */
  async close(): Promise<void> {
    this.#users -= 1;
    if (this.#users > 0) return;
    this.#closing = this.#closeHandle();
    await this.#closing;
  }

  /**
   * Abort the communicator at the end of this turn, together with all others of the turn: a peer that is lost ends several
   * groups, and aborting one of them alone waits for work of the next on the same device.
   */
  abort(communicator: Communicator, reason: string): void {
    this.#aborting.push(communicator);
    if (this.#aborting.length > 1) return;
    queueMicrotask(() => {
      const communicators = this.#aborting;
      this.#aborting = [];
      this.addon.commAbort(communicators, reason);
    });
  }

  async #closeHandle(): Promise<void> {
    try {
      await this.addon.closeDevice(this.handle);
    } finally {
      openDevices.get(this.addon)?.delete(this.index);
    }
  }
}
