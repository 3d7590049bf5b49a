/** One GPU behind the addon's interface, in memory; see fake-nccl.ts. */
import {
  INTERFACE_VERSION,
  type Block,
  type Communicator,
  type Device,
  type FlightRecord,
  type NativeFailure,
  type NativeFailureCode,
  type NcclAddon,
  type NcclOperation,
} from '../../src/backend/nccl/addon';
import { blocksOf, type FakeBlock } from './fake-nccl-operations';

export function nativeFailure(
  code: NativeFailureCode,
  message: string,
  more: Partial<Pick<NativeFailure, 'call' | 'result' | 'detail' | 'isDeviceLost'>> = {},
): NativeFailure {
  return Object.assign(new Error(message), { code, ...more });
}

export interface FakeCommunicator {
  readonly id: string;
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly owner: FakeRank;
  /** Set when it must not be used any more. */
  end: NativeFailure | undefined;
  numOperations: number;
}

export interface Launch {
  readonly communicator: FakeCommunicator;
  readonly operations: readonly NcclOperation[];
  readonly done: Set<NcclOperation>;
  readonly record: { -readonly [K in keyof FlightRecord]: FlightRecord[K] };
  readonly settled: Promise<void>;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

export interface SplitCall {
  readonly communicator: FakeCommunicator;
  readonly color: number;
  readonly key: number;
  readonly name: string;
  readonly resolve: (child: Communicator | undefined) => void;
  readonly reject: (error: Error) => void;
}

/** Functions that a test can make fail. */
export type Failing =
  'openDevice' | 'allocate' | 'upload' | 'download' | 'uniqueId' | 'commInit' | 'commSplit' | 'collective' | 'launch';

/** What a GPU wants of the network. */
interface Network {
  readonly misuses: string[];
  newId(): Uint8Array;
  /** Settles once all ranks of the communicator have joined. */
  join(communicator: FakeCommunicator): Promise<void>;
  split(call: SplitCall): void;
  /** The communicator has ended. */
  breakOffSplit(communicator: FakeCommunicator, error: Error): void;
  /** Let operations run that all their ranks have come to. */
  wake(): void;
}

/** One rank's GPU. */
export class FakeRank {
  readonly stream: Launch[] = [];
  readonly records: Launch['record'][] = [];
  /** Names of the addon's functions, in the order of calls. */
  readonly calls: string[] = [];
  /** Groups of names of communicators that were aborted together. */
  readonly aborts: string[][] = [];
  readonly #network: Network;
  readonly #rank: number;
  readonly #failures = new Map<Failing, Error>();
  numBlocks = 0;
  numOpen = 0;
  /** Text of the kernels that the device was opened with. */
  kernels: string | undefined;
  deviceCount = 8;
  uuid: string;

  constructor(network: Network, rank: number) {
    this.#network = network;
    this.#rank = rank;
    this.uuid = `uuid-of-${rank}`;
  }

  /** The next call of the function throws or rejects. */
  failNext(name: Failing, error: Error): void {
    this.#failures.set(name, error);
  }

  finishIfDone(launch: Launch): void {
    if (launch.done.size < launch.operations.length || this.stream[0] !== launch) return;
    this.stream.shift();
    launch.record.state = 'done';
    launch.resolve();
  }

  readonly addon: NcclAddon = {
    INTERFACE_VERSION,
    probe: () => {
      const library = { isLoaded: true, path: '/fake/lib.so', tried: ['/fake/lib.so'] };
      return {
        cuda: { ...library, version: 13_000 },
        nccl: { ...library, path: '/fake/libnccl.so.2', version: 22_809 },
        deviceCount: this.deviceCount,
      };
    },
    deviceInfo: () => ({
      name: 'Fake GPU',
      uuid: this.uuid,
      pciBusId: '0000:00:00.0',
      totalBytes: 2 ** 30,
      computeCapability: [9, 0] as const,
    }),
    openDeviceSync: () => {
      throw new Error('not for the backend');
    },
    openDevice: async (_index: number, { ptx }: { ptx?: string | undefined }) => {
      this.#enter('openDevice');
      this.numOpen += 1;
      this.kernels = ptx;
      return {} as Device;
    },
    closeDevice: async () => {
      this.#enter('closeDevice');
      this.numOpen -= 1;
      for (const launch of this.stream.splice(0))
        this.#reject(launch, nativeFailure('CLOSED', 'the device was closed'));
    },
    synchronize: async () => undefined,
    allocate: (_device: Device, byteLength: number) => {
      this.#enter('allocate');
      this.numBlocks += 1;
      return { bytes: new Uint8Array(byteLength).fill(0xcd), isReleased: false } as unknown as Block;
    },
    release: (block: Block) => {
      const fake = block as unknown as FakeBlock;
      if (!fake.isReleased) this.numBlocks -= 1;
      fake.isReleased = true;
    },
    trim: async () => undefined,
    upload: (block: Block, byteOffset: number, view: Uint8Array) =>
      this.#copy('upload', block, view, (bytes) => bytes.set(view, byteOffset)),
    download: (block: Block, byteOffset: number, view: Uint8Array) =>
      this.#copy('download', block, view, (bytes) =>
        view.set(bytes.subarray(byteOffset, byteOffset + view.byteLength)),
      ),
    copy: (target: Block, targetOffset: number, source: Block, sourceOffset: number, byteLength: number) => {
      this.#enter('copy');
      const from = (source as unknown as FakeBlock).bytes.subarray(sourceOffset, sourceOffset + byteLength);
      (target as unknown as FakeBlock).bytes.set(from, targetOffset);
    },
    launch: (_device: Device, kernel: string) => {
      this.#enter('launch');
      this.calls.push(kernel);
    },
    uniqueId: () => {
      this.#enter('uniqueId');
      return this.#network.newId();
    },
    commInit: async (_device: Device, options: { size: number; rank: number; id: Uint8Array; name: string }) => {
      this.#enter('commInit');
      const { size, rank, id, name } = options;
      const communicator = newCommunicator(this, Buffer.from(id).toString('hex'), name, rank, size);
      await this.#network.join(communicator);
      return communicator as unknown as Communicator;
    },
    commSplit: async (parent: Communicator, { color, key, name }: { color: number; key: number; name: string }) => {
      this.#enter('commSplit');
      const communicator = parent as unknown as FakeCommunicator;
      if (this.stream.some((launch) => launch.communicator === communicator)) {
        this.#network.misuses.push(`rank ${this.#rank} splits ${communicator.name} while it has something in flight`);
      }
      return new Promise<Communicator | undefined>((resolve, reject) => {
        this.#network.split({ communicator, color, key, name, resolve, reject });
      });
    },
    collective: async (
      communicator: Communicator,
      operations: readonly NcclOperation[],
      { label }: { readonly label: string },
    ) => {
      this.#enter('collective');
      return this.#issue(communicator as unknown as FakeCommunicator, operations, label);
    },
    commAbort: (communicators: readonly Communicator[], reason: string) => {
      const fakes = communicators as unknown as readonly FakeCommunicator[];
      this.aborts.push(fakes.map(({ name }) => name));
      for (const fake of fakes) {
        fake.end ??= nativeFailure('ABORTED', `aborted: ${reason}`);
        this.#network.breakOffSplit(fake, fake.end);
      }
      for (const launch of this.stream.filter((each) => fakes.includes(each.communicator))) {
        this.stream.splice(this.stream.indexOf(launch), 1);
        this.#reject(launch, nativeFailure('ABORTED', `aborted: ${reason}`));
      }
      this.#network.wake();
    },
    commDestroy: async (communicator: Communicator) => {
      (communicator as unknown as FakeCommunicator).end ??= nativeFailure('CLOSED', 'the communicator was destroyed');
    },
    stats: () => ({
      heartbeat: 0,
      queued: 0,
      inFlight: this.stream.length,
      reservedBytes: 4096,
      usedBytes: 2048,
      freeBytes: 1024,
      totalBytes: 8192,
      leakedCommunicators: 0,
    }),
    flightRecorder: () => this.records,
  } as unknown as NcclAddon;

  #enter(name: string): void {
    this.calls.push(name);
    const failure = this.#failures.get(name as Failing);
    this.#failures.delete(name as Failing);
    if (failure !== undefined) throw failure;
  }

  /** After all that was launched before and uses the block. */
  async #copy(
    name: 'upload' | 'download',
    block: Block,
    { buffer }: Uint8Array,
    act: (bytes: Uint8Array) => void,
  ): Promise<void> {
    this.#enter(name);
    const { resizable } = buffer as { readonly resizable?: boolean };
    const isPlain = Object.prototype.toString.call(buffer) === '[object ArrayBuffer]' && resizable !== true;
    if (!isPlain)
      throw new TypeError(`${name}: view: expected a Uint8Array over memory of fixed size that is not shared`);
    const users = this.stream.filter(({ operations }) => operations.some((each) => blocksOf(each).includes(block)));
    if (users.length === 0 && name === 'upload') act((block as unknown as FakeBlock).bytes);
    await Promise.allSettled(users.map(({ settled }) => settled));
    if (users.length > 0 || name === 'download') act((block as unknown as FakeBlock).bytes);
  }

  #issue(communicator: FakeCommunicator, operations: readonly NcclOperation[], label: string): Promise<void> {
    if (communicator.end !== undefined) throw communicator.end;
    if (operations.some((each) => blocksOf(each).some((block) => (block as unknown as FakeBlock).isReleased))) {
      this.#network.misuses.push(`rank ${this.#rank} uses released memory in ${label}`);
    }
    const { promise, resolve, reject } = withResolvers();
    const record: Launch['record'] = {
      communicator: communicator.name,
      sequence: communicator.numOperations++,
      label,
      state: 'launched',
      queuedMs: 0,
    };
    this.records.push(record);
    this.stream.push({ communicator, operations, done: new Set(), record, settled: promise, resolve, reject });
    this.#network.wake();
    return promise;
  }

  #reject(launch: Launch, error: NativeFailure): void {
    launch.record.state = 'failed';
    launch.record.error = error.message;
    launch.reject(error);
  }
}

export function newCommunicator(
  owner: FakeRank,
  id: string,
  name: string,
  rank: number,
  size: number,
): FakeCommunicator {
  return { id, name, rank, size, owner, end: undefined, numOperations: 0 };
}

function withResolvers(): { promise: Promise<void>; resolve: () => void; reject: (error: Error) => void } {
  let resolve: () => void = () => undefined;
  let reject: (error: Error) => void = () => undefined;
  const promise = new Promise<void>((done, failed) => {
    resolve = done;
    reject = failed;
  });
  promise.catch(() => undefined); // the caller has its own copy
  return { promise, resolve, reject };
}
