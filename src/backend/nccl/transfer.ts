import type { Communicator, NcclOperation } from './addon';
import type { OpenDevice } from './open-device';
import { Staging } from './staging';

/**
 * How much later than the call's own deadline the addon ends an operation. A net for an event loop that does not turn: the
 * deadline itself is watched here, where more can be said.
 */
export const NET_MS = 5000;

export interface TransferOptions {
  readonly device: OpenDevice;
  readonly communicator: Communicator;
  /** For the flight recorder. */
  readonly label: string;
  readonly timeoutMs: number;
  /** Places the buffers of the call, and says what is to be done with them. */
  readonly plan: (staging: Staging) => NcclOperation[];
}

/** The data of one call on its way: to the device where it is not there, through NCCL, and back. */
export class Transfer {
  readonly #options: TransferOptions;
  readonly #staging: Staging;
  readonly #operations: readonly NcclOperation[];

  /** Holds the memory that the call needs, until `release`. @throws NativeFailure where there is none left */
  constructor(options: TransferOptions) {
    this.#options = options;
    this.#staging = new Staging(options.device);
    try {
      this.#operations = options.plan(this.#staging);
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** There is nothing to move. */
  get isEmpty(): boolean {
    return this.#operations.length === 0;
  }

  /** All is given to the device when this returns; settles when NCCL is done. Rejects with what the addon throws. */
  async launch(): Promise<void> {
    const { device, communicator, label, timeoutMs } = this.#options;
    const netMs = timeoutMs + NET_MS;
    const uploads = this.#staging.upload(netMs);
    // async: what it throws must not leave the uploads without a listener
    const moved = (async () => device.addon.collective(communicator, this.#operations, { label, timeoutMs: netMs }))();
    await Promise.all([...uploads, moved]);
  }

  /** Results that belong in host memory; once all ranks have agreed on the call. */
  async download(): Promise<void> {
    // where nothing was launched, nothing was copied up either: the results are where they belong already
    if (!this.isEmpty && this.#staging.hasDownloads) await this.#staging.download(this.#options.timeoutMs + NET_MS);
  }

  release(): void {
    this.#staging.release();
  }
}
