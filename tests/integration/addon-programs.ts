/**
 * Programs that use the addon as it is, each in a process of its own: `node addon-programs.js NAME`. What a program finds it
 * prints as one line of JSON; an exception ends it with status 1.
 */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import {
  type Block,
  type Communicator,
  type Device,
  type NativeFailure,
  type NcclOperation,
  requireAddon,
} from '../../src/backend/nccl/addon';
import { libraryPaths } from '../../src/backend/nccl/find-libraries';
import { loadNccl } from '../../src/backend/nccl/load-nccl';
import { misuse } from './addon-misuse';
import { OPENING, opens, openInWorker } from './addon-opening';

const addon = requireAddon();
const TIMEOUT_MS = 10_000;
/** Elements of each buffer here. */
const COUNT = 1000;

/** What a worker of `workers` and `terminate` gets. */
interface WorkerTask {
  readonly rank: number;
  readonly size: number;
  readonly id: Uint8Array;
  readonly isStuck: boolean;
}

function print(found: unknown): void {
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

const pause = (ms: number): Promise<void> => new Promise((settle) => setTimeout(settle, ms));

function openDevices(count: number): Device[] {
  const { nccl, cuda } = addon.probe(libraryPaths());
  if (!cuda.isLoaded || !nccl.isLoaded) throw new Error(`not loaded: ${cuda.error ?? ''} ${nccl.error ?? ''}`);
  return Array.from({ length: count }, (_, index) => addon.openDeviceSync(index, {}));
}

/** All ranks of a world in this thread, one a device. */
async function openWorld(size: number): Promise<{ devices: Device[]; communicators: Communicator[] }> {
  const devices = openDevices(size);
  const id = addon.uniqueId();
  const communicators = await Promise.all(
    devices.map((device, rank) => addon.commInit(device, { size, rank, id, timeoutMs: TIMEOUT_MS, name: 'world' })),
  );
  return { devices, communicators };
}

function sumOf(block: Block): NcclOperation {
  const place = { block, byteOffset: 0 };
  return { kind: 'allReduce', dtype: 'float32', op: 'sum', count: COUNT, send: place, recv: place };
}

const allReduce = (communicator: Communicator, block: Block, timeoutMs = TIMEOUT_MS): Promise<void> =>
  addon.collective(communicator, [sumOf(block)], { label: 'allReduce', timeoutMs });

const bytesOf = (values: Float32Array): Uint8Array => new Uint8Array(values.buffer);

const upload = (block: Block, value: number): Promise<void> =>
  addon.upload(block, 0, bytesOf(new Float32Array(COUNT).fill(value)), TIMEOUT_MS);

async function download(block: Block): Promise<Float32Array> {
  const values = new Float32Array(COUNT);
  await addon.download(block, 0, bytesOf(values), TIMEOUT_MS);
  return values;
}

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'fulfilled',
    (error: NativeFailure) => error.code,
  );

/** A collective of two ranks that only the first one calls. */
async function startStuck(): Promise<{ done: Promise<void>; devices: Device[] }> {
  const { devices, communicators } = await openWorld(2);
  const block = addon.allocate(devices[0] as Device, COUNT * 4);
  const done = allReduce(communicators[0] as Communicator, block, 60_000);
  await pause(50); // it is on its stream by then, mostly
  return { done, devices };
}

/** One rank of four, in a worker. */
async function runWorker({ rank, size, id, isStuck }: WorkerTask): Promise<void> {
  addon.probe(libraryPaths());
  const device = addon.openDeviceSync(rank, {});
  const communicator = await addon.commInit(device, { size, rank, id, timeoutMs: TIMEOUT_MS, name: 'workers' });
  const block = addon.allocate(device, COUNT * 4);
  await upload(block, rank + 1);
  await allReduce(communicator, block);
  const values = await download(block);
  if (!isStuck) {
    await addon.commDestroy(communicator, TIMEOUT_MS);
    await addon.closeDevice(device);
    parentPort?.postMessage({ rank, first: values[0], last: values.at(-1) });
    return;
  }
  // The others never call this one.
  if (rank === 0) void allReduce(communicator, block, 60_000);
  for (let i = 0; i < 20; i++) void upload(addon.allocate(device, COUNT * 4), i);
  parentPort?.postMessage({ rank });
  if (rank !== 3) setInterval(() => undefined, 1000); // the last one ends by itself, with uploads in flight
}

async function inWorkers(isStuck: boolean, onMessage: (message: unknown, worker: Worker) => void): Promise<number[]> {
  addon.probe(libraryPaths());
  const [size, id] = [4, addon.uniqueId()];
  const codes = Array.from({ length: size }, (_, rank) => {
    const task: WorkerTask = { rank, size, id, isStuck };
    const worker = new Worker(__filename, { workerData: task });
    worker.on('message', (message) => onMessage(message, worker));
    return new Promise<number>((settle, fail) => worker.on('exit', settle).on('error', fail));
  });
  return Promise.all(codes);
}

const programs: Readonly<Record<string, () => Promise<void> | void>> = {
  /** Each wait here ends only if a timer of this loop fires meanwhile: the second rank comes by a timer. */
  async ticks() {
    const devices = openDevices(2);
    const [first, second] = devices as [Device, Device];
    const id = addon.uniqueId();
    const waited: string[] = [];
    /** The second rank's part is begun by a timer, while the first one's is waited for. */
    async function meet<T>(name: string, one: () => Promise<T>, other: () => Promise<T>): Promise<[T, T]> {
      const results = await Promise.all([one(), pause(50).then(other)]);
      waited.push(name);
      return results;
    }
    const init = (device: Device, rank: number) => () =>
      addon.commInit(device, { size: 2, rank, id, timeoutMs: TIMEOUT_MS, name: 'world' });
    const [a, b] = await meet('commInit', init(first, 0), init(second, 1));
    const [blockA, blockB] = [addon.allocate(first, COUNT * 4), addon.allocate(second, COUNT * 4)];
    const sumA = (): Promise<void> => allReduce(a, blockA);
    const sumB = (): Promise<void> => allReduce(b, blockB);
    const after = (wait: () => Promise<unknown>) => async () => {
      void sumA(); // not done before the other rank comes
      await wait();
    };
    await meet('collective', sumA, sumB);
    await meet(
      'synchronize',
      after(() => addon.synchronize(first, TIMEOUT_MS)),
      sumB,
    );
    await meet(
      'upload',
      after(() => upload(blockA, 1)),
      sumB,
    );
    await meet(
      'download',
      after(() => download(blockA)),
      sumB,
    );
    const split = (communicator: Communicator) => () =>
      addon.commSplit(communicator, { color: 0, key: 0, timeoutMs: TIMEOUT_MS, name: 'child' });
    const [childA, childB] = await meet('commSplit', split(a), split(b));
    const destroy = (communicator: Communicator | undefined) => () =>
      communicator ? addon.commDestroy(communicator, TIMEOUT_MS) : Promise.reject(new Error('no child'));
    await meet('commDestroy of the child', destroy(childA), destroy(childB));
    await meet('commDestroy', destroy(a), destroy(b));
    await meet(
      'closeDevice',
      () => addon.closeDevice(first),
      () => addon.closeDevice(second),
    );
    print(waited);
  },

  /** Nothing is closed, and nothing is pending: the process ends. */
  async idle() {
    const { devices, communicators } = await openWorld(2);
    const blocks = devices.map((device) => addon.allocate(device, COUNT * 4));
    await Promise.all(communicators.map((communicator, rank) => allReduce(communicator, blocks[rank] as Block)));
    print('idle');
  },

  /** Nothing but the promise keeps the process alive. */
  pending() {
    const [device] = openDevices(1) as [Device];
    void (async () => {
      for (let i = 0; i < 20; i++) await upload(addon.allocate(device, COUNT * 4), i);
      print('settled');
    })();
  },

  async exit() {
    await startStuck();
    print('exit');
    process.exit(7);
  },

  async throw() {
    await startStuck();
    setImmediate(() => {
      throw new Error('a bug of the program');
    });
  },

  /** The main thread goes on after its workers were ended in the middle of all they do. */
  async terminate() {
    const codes = await inWorkers(true, (message, worker) => {
      if ((message as { rank: number }).rank !== 3) setTimeout(() => void worker.terminate(), 20);
    });
    const [device] = openDevices(1) as [Device];
    const block = addon.allocate(device, COUNT * 4);
    await upload(block, 3);
    print({ codes: codes.sort(), value: (await download(block))[COUNT - 1] });
  },

  async workers() {
    const results: unknown[] = [];
    const codes = await inWorkers(false, (message) => results.push(message));
    print({ codes, results });
  },

  /** Handles that nobody has any more, of memory that commands in flight use. Needs --expose-gc. */
  async garbage() {
    const collect = (globalThis as { gc?: () => void }).gc;
    if (!collect) throw new Error('run with --expose-gc');
    const { devices, communicators } = await openWorld(2);
    const results = await Promise.all(
      Array.from({ length: 20 }, async (_, round) => {
        const downloads = devices.map(async (device, rank) => {
          const block = addon.allocate(device, COUNT * 4);
          void upload(block, round + rank);
          void allReduce(communicators[rank] as Communicator, block);
          const values = new Float32Array(COUNT);
          await addon.download(block, 0, bytesOf(values), TIMEOUT_MS);
          return values;
        });
        collect();
        return (await Promise.all(downloads)).map((values) => values.every((value) => value === 2 * round + 1));
      }),
    );
    for (let i = 0; i < 100 && devices.some((device) => addon.stats(device).usedBytes > 0); i++) {
      await pause(10);
      collect();
    }
    print({ areRight: results.flat().every(Boolean), used: devices.map((device) => addon.stats(device).usedBytes) });
  },

  /** The first failure of a communicator, and what the others then say. */
  async timeout() {
    const { devices, communicators } = await openWorld(2);
    const [first] = devices as [Device];
    const [a] = communicators as [Communicator];
    const block = addon.allocate(first, COUNT * 4);
    const one = allReduce(a, block, 100);
    const other = allReduce(a, block, 60_000);
    const message = await one.catch((error: Error) => error.message);
    const codes = [await codeOf(one), await codeOf(other), await codeOf(allReduce(a, block))];
    const split = addon.commSplit(a, { color: 0, key: 0, timeoutMs: TIMEOUT_MS, name: 'child' });
    codes.push(await codeOf(split));
    addon.commAbort(communicators, 'again');
    addon.commAbort(communicators, 'and again');
    const states = addon.flightRecorder(first).map(({ communicator, sequence, label, state }) => ({
      ...{ communicator, sequence, label, state },
    }));
    print({ message, codes, states, destroyed: await codeOf(addon.commDestroy(a, TIMEOUT_MS)) });
  },

  /** What was closed says so; what may be asked afterwards still answers. */
  async closed() {
    const { devices, communicators } = await openWorld(1);
    const [device] = devices as [Device];
    const [communicator] = communicators as [Communicator];
    const block = addon.allocate(device, COUNT * 4);
    const other = addon.allocate(device, COUNT * 4);
    await allReduce(communicator, block);
    addon.release(block);
    addon.release(block);
    const codes: Record<string, string> = {};
    const code = (action: () => unknown): string => {
      try {
        action();
        return 'returned';
      } catch (error) {
        return (error as NativeFailure).code;
      }
    };
    codes['upload to a released block'] = await codeOf(upload(block, 1));
    codes['download of a released block'] = await codeOf(download(block));
    codes['collective on a released block'] = await codeOf(allReduce(communicator, block));
    codes['copy of a released block'] = code(() => addon.copy(other, 0, block, 0, 4));
    await addon.closeDevice(device);
    await addon.closeDevice(device);
    codes['upload to a closed device'] = await codeOf(upload(other, 1));
    codes['allocate on a closed device'] = code(() => addon.allocate(device, 4));
    codes['collective on a closed device'] = await codeOf(allReduce(communicator, other));
    codes['synchronize of a closed device'] = await codeOf(addon.synchronize(device, TIMEOUT_MS));
    codes['trim of a closed device'] = await codeOf(addon.trim(device));
    addon.release(other);
    print({ codes, records: addon.flightRecorder(device).length, queued: addon.stats(device).queued });
  },

  /** See addon-opening.ts. */
  async opens() {
    print(await opens(addon, __filename));
  },

  /** What the machine has, as the backend asks for it. */
  libraries() {
    const loaded = loadNccl();
    if ('reason' in loaded) print({ reason: loaded.reason });
    else print({ cuda: loaded.probe.cuda, nccl: loaded.probe.nccl, deviceCount: loaded.probe.deviceCount });
  },

  /** Calls with wrong arguments, by name; see addon-misuse.ts. */
  async misuse() {
    const { devices, communicators } = await openWorld(1);
    const [first] = devices as [Device];
    const second = addon.openDeviceSync(1, {});
    print(misuse(addon, first, second, communicators[0] as Communicator));
  },
};

async function main(): Promise<void> {
  if (!isMainThread && workerData === OPENING) return openInWorker(addon);
  if (!isMainThread) return runWorker(workerData as WorkerTask);
  const name = process.argv[2] ?? '';
  const program = programs[name];
  if (program === undefined) throw new Error(`no program '${name}'`);
  await program();
}

void main();
