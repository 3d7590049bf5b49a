/** What the checks of one process work on; each thing is opened when a check first asks for it. */
import { inspect } from 'node:util';
import type { BackendDevice } from '../../src/backend/backend-device';
import { asError } from '../../src/core/errors';
import { World } from '../../src/process-group/world';
import { requireAddon, type Communicator, type Device, type NcclAddon, type Probe } from '../../src/backend/nccl/addon';
import { Skipped, type Notes } from './check';
import { kernelText, libraryPaths } from './libraries';

/** On stand-ins, which are timed only to see that it works, and whose kernels are slow. */
export const isStandIn = process.env['GPU_CHECK_STAND_INS'] === '1';

/** For every wait of a check; the runner's limit is longer. */
export const WAIT_MS = 8000;
/** For making a communicator, which opens files and sockets the first time. */
const INIT_MS = 15_000;

export class Bench {
  readonly addon: NcclAddon = requireAddon();
  /** Checks of this group were made in another process, one of which failed. */
  readonly isAfterFailure: boolean;
  #notes: Notes = {};
  #device: Device | undefined;
  #communicator: Promise<Communicator> | undefined;
  #world: Promise<World> | undefined;

  constructor(isAfterFailure: boolean) {
    this.isAfterFailure = isAfterFailure;
  }

  /** Leave something in the report. */
  note(name: string, value: unknown): void {
    this.#notes[name] = value;
  }

  /** The notes since the last call. */
  takeNotes(): Notes {
    const notes = this.#notes;
    this.#notes = {};
    return notes;
  }

  /** End the check: it cannot be run here. */
  skip(reason: string): never {
    throw new Skipped(reason);
  }

  probe(): Probe {
    return this.addon.probe(libraryPaths());
  }

  /** Device 0, below the backend. */
  device(): Device {
    this.#device ??= this.openDevice();
    return this.#device;
  }

  /** One more handle of device 0, which the check closes. */
  openDevice(): Device {
    this.probe();
    return this.addon.openDeviceSync(0, { ptx: kernelText() });
  }

  /** Of one rank, on `device()`. */
  communicator(): Promise<Communicator> {
    this.#communicator ??= this.addon.commInit(this.device(), {
      size: 1,
      rank: 0,
      id: this.addon.uniqueId(),
      timeoutMs: INIT_MS,
      name: 'check',
    });
    return this.#communicator;
  }

  /** Of one rank, on the NCCL backend. */
  world(): Promise<World> {
    this.#world ??= World.init({ backend: 'nccl', timeoutMs: WAIT_MS, joinTimeoutMs: INIT_MS });
    return this.#world;
  }

  /** The device of `world()`. */
  async backendDevice(): Promise<BackendDevice> {
    const { device } = (await this.world()).group.backend;
    if (device === undefined) throw new Error('the NCCL backend has no device');
    return device;
  }

  /** Everything that was opened; a check that failed to open something has said so. */
  async close(): Promise<void> {
    const world = await this.#world?.catch(() => undefined);
    await world?.close();
    const communicator = await this.#communicator?.catch(() => undefined);
    if (communicator !== undefined) await this.addon.commDestroy(communicator, WAIT_MS);
    if (this.#device !== undefined) await this.addon.closeDevice(this.#device);
  }
}

/** A line of what it is, then all that it holds: its stack, what the library said, its cause. */
export function describeFailure(thrown: unknown): string {
  const { name, message } = asError(thrown);
  return `${name}: ${message}\n${inspect(thrown, { depth: 4 })}`;
}

/** Throw unless it holds. */
export function expect(holds: boolean, claim: string): asserts holds {
  if (!holds) throw new Error(claim);
}

/** What `action` fails with. */
export async function failureOf(action: () => unknown): Promise<Error & { readonly code?: string }> {
  let value: unknown;
  try {
    value = await action();
  } catch (error) {
    if (error instanceof Error) return error;
    throw error;
  }
  throw new Error(`expected an error, got ${inspect(value)}`);
}
