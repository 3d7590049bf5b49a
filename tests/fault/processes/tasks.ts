/** What a process of the fault tests can be told to do. */
import type { Socket } from 'node:net';
import type { Backend } from '../../../src/backend/backend';
import { toWire, type WireError } from '../../../src/core/error-wire';
import { endingOf, type Ending } from '../../conformance/program';
import { currentWorld, worldTasks, type JobPlace } from '../../helpers/process-world';
import { loop, splitOff, type LoopArgs, type LoopEnd } from './loop';

/** How joining a job went. */
export interface Joined {
  readonly error: WireError | null;
  readonly elapsedMs: number;
}

const MIB = 2 ** 20;

let others: Backend | undefined;

/** Hold the event loop: nothing else of this process runs. */
function computeWithoutYielding(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

export const tasks = {
  ...worldTasks,

  /** As `open`, for a test that looks at how it fails. */
  async join(place: JobPlace): Promise<Joined> {
    const start = performance.now();
    const error = await worldTasks.open(place).then(() => null, toWire);
    return { error, elapsedMs: performance.now() - start };
  },

  /** The ranks make a group without the one that the test means to lose; it must go on. */
  async splitOff({ victim }: { readonly victim: number }): Promise<void> {
    others = await splitOff(currentWorld().group.backend, victim);
  },

  loop(args: LoopArgs): Promise<LoopEnd> {
    const group = others;
    others = undefined;
    return loop(currentWorld().group.backend, group, args);
  },

  /** How a barrier ends. */
  next: (): Promise<Ending> => endingOf(currentWorld().group.backend.barrier()),

  /** How a wait for a key of the world's store ends. */
  awaitKey: ({ key }: { readonly key: string }): Promise<Ending> => endingOf(currentWorld().store.get(key)),

  /** How setting a key of the world's store ends. */
  setKey: ({ key }: { readonly key: string }): Promise<Ending> => endingOf(currentWorld().store.set(key, '')),

  /** Many gets wait for one value, which then comes to all of them at once; the bytes that came. */
  async getTogether({ gets, bytes }: { readonly gets: number; readonly bytes: number }): Promise<number> {
    const { store } = currentWorld();
    const values = Array.from({ length: gets }, () => store.get('together'));
    await store.set('together', new Uint8Array(bytes));
    return (await Promise.all(values)).reduce((sum, value) => sum + value.byteLength, 0);
  },

  /** Compute, then sum `mib` MiB over the ranks; the number of elements that are wrong. */
  async sumAfterComputing({ busyMs, mib }: { readonly busyMs: number; readonly mib: number }): Promise<number> {
    const { backend } = currentWorld().group;
    computeWithoutYielding(busyMs);
    const data = Float32Array.from({ length: (mib * MIB) / 4 }, (_unused, i) => (i % 1000) + backend.rank);
    const work = backend.allReduce(data, 'Sum');
    await new Promise(setImmediate); // the transfer has begun, then this rank computes again
    computeWithoutYielding(busyMs / 2);
    await work;
    const { worldSize } = backend;
    const ranks = (worldSize * (worldSize - 1)) / 2;
    return data.reduce((wrong, value, i) => wrong + (value === (i % 1000) * worldSize + ranks ? 0 : 1), 0);
  },

  /** End as a program does that throws and catches nothing, in the turn in which it has posted some messages to each peer. */
  async throwUncaught({ message, posts = 0 }: { readonly message: string; readonly posts?: number }): Promise<void> {
    const { backend } = currentWorld().group;
    setTimeout(() => {
      // tags that the loop does not use
      for (let tag = 1; tag <= posts; tag++) {
        for (let peer = 0; peer < backend.worldSize; peer++) {
          if (peer !== backend.rank) void backend.send(new Float32Array(100), peer, tag);
        }
      }
      throw new RangeError(message);
    }, 0);
    await new Promise(() => undefined);
  },

  /** End as a program does that catches its error, tells the others, and closes its world. */
  async abort({ message }: { readonly message: string }): Promise<void> {
    currentWorld().abort(new RangeError(message));
    await worldTasks.close();
  },

  async exit({ code }: { readonly code: number }): Promise<void> {
    process.exit(code);
    await Promise.resolve();
  },

  /** Cut every connection of this process without a word, whatever is on its way. */
  async cutConnections({ afterMs }: { readonly afterMs: number }): Promise<number> {
    await new Promise((resolve) => setTimeout(resolve, afterMs));
    // node has no public list of a process's sockets
    const { _getActiveHandles } = process as unknown as { _getActiveHandles(): unknown[] };
    const sockets = _getActiveHandles.call(process).filter(isConnection);
    for (const socket of sockets) socket.destroy();
    return sockets.length;
  },

  /** Kinds of what would keep this process alive, the channel to its parent apart. */
  async resources(): Promise<string[]> {
    await new Promise(setImmediate);
    return process.getActiveResourcesInfo().filter((kind) => !['PipeWrap', 'Immediate'].includes(kind));
  },
};

function isConnection(handle: unknown): handle is Socket {
  return (
    typeof handle === 'object' &&
    handle !== null &&
    'remoteAddress' in handle &&
    'bytesWritten' in handle &&
    !('fd' in handle && (handle as { fd: number }).fd <= 2)
  );
}
