/** A random mixed program in an order that NCCL allows, the same on every backend: all ranks draw from one seed. */
import type { Backend } from '../../src/backend/backend';
import type { BackendDevice } from '../../src/backend/backend-device';
import { isDeviceBuffer, type DeviceBuffer } from '../../src/core/device-buffer';
import {
  allocateBuffer,
  bytesOf,
  dtypeOf,
  DTYPES,
  isFloatDType,
  viewBuffer,
  type DataBuffer,
  type DType,
  type HostBuffer,
} from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { ReduceOp } from '../../src/core/reduce-op';
import { storeValues } from './fill';

export interface NcclProgram {
  readonly seed: number;
  readonly numCalls: number;
  /** Of each call. */
  readonly timeoutMs: number;
  /** With averages, which NCCL rounds in its own way where sizes are no powers of two; default true. */
  readonly hasAverages?: boolean | undefined;
}

/** What became of a call on one rank: its result's bytes, or its error. */
export interface CallOutcome {
  readonly title: string;
  readonly bytes?: string;
  readonly error?: Error;
  /** Host memory of a call that failed is not as it was. */
  readonly isTouched?: boolean;
}

/** Puts the buffers of one call where the rank wants them, and reads results back. Draws by itself, so that ranks differ. */
class CallBuffers {
  readonly #device: BackendDevice | undefined;
  readonly #random: Generator;
  readonly #held: DeviceBuffer[] = [];
  readonly #onHost: { readonly values: HostBuffer; readonly before: string }[] = [];

  constructor(device: BackendDevice | undefined, random: Generator) {
    this.#device = device;
    this.#random = random;
  }

  put(values: HostBuffer): DataBuffer {
    const buffer = this.#random.nextBelow(2) === 0 ? undefined : this.#allocate(values);
    if (buffer === undefined) {
      this.#onHost.push({ values, before: hexOf(values) });
      return values;
    }
    this.#held.push(buffer);
    this.#device?.upload(values, buffer).catch(() => undefined); // results are wrong then
    return buffer;
  }

  /** Undefined where there is no device, or no memory on it. */
  #allocate(values: HostBuffer): DeviceBuffer | undefined {
    try {
      return this.#device?.allocate(dtypeOf(values), values.length);
    } catch {
      return undefined;
    }
  }

  part<B extends DataBuffer>(whole: B, start: number, length: number): DataBuffer {
    if (!isDeviceBuffer(whole)) return viewBuffer(whole, start, length);
    const view = whole.view(start, length);
    this.#held.push(view);
    return view;
  }

  /** Calls in flight hold what they need. Results are wanted longer. */
  dispose(except?: DataBuffer): void {
    for (const buffer of this.#held.filter((each) => each !== except)) buffer.dispose();
  }

  get isTouched(): boolean {
    return this.#onHost.some(({ values, before }) => hexOf(values) !== before);
  }

  async read(buffer: DataBuffer): Promise<string> {
    if (!isDeviceBuffer(buffer)) return hexOf(buffer);
    const copy = allocateBuffer(buffer.dtype, buffer.length);
    try {
      await this.#device?.download(buffer, copy);
    } finally {
      buffer.dispose();
    }
    return hexOf(copy);
  }
}

function hexOf(buffer: HostBuffer): string {
  return Buffer.from(bytesOf(buffer)).toString('hex');
}

/** Small whole numbers of the rank: sums are exact in every dtype, whatever their order. */
function valuesOf(dtype: DType, length: number, seed: number): HostBuffer {
  const values = Float64Array.from({ length }, (_unused, i) => 1 + ((i * 7 + seed * 13) % 3));
  return storeValues(dtype, values);
}

const OPS = [ReduceOp.Sum, ReduceOp.Product, ReduceOp.Min, ReduceOp.Max, ReduceOp.Average] as const;

interface Started {
  readonly work: PromiseLike<void>;
  readonly result?: DataBuffer | undefined;
}

interface Draw extends Pick<NcclProgram, 'timeoutMs' | 'hasAverages'> {
  readonly group: Backend;
  readonly random: Generator;
  readonly buffers: CallBuffers;
  readonly seed: number;
}

/** One call of a group, the same on all its ranks. */
function start({
  group,
  random,
  buffers,
  seed,
  timeoutMs,
  hasAverages = true,
}: Draw): Started & { readonly title: string } {
  const { rank, worldSize: size } = group;
  const dtype = DTYPES[random.nextBelow(DTYPES.length)] as DType;
  const op = OPS[random.nextBelow(hasAverages && isFloatDType(dtype) ? OPS.length : OPS.length - 1)] as ReduceOp;
  const root = random.nextBelow(size);
  const length = [0, 1, 2, size, 17, 300][random.nextBelow(6)] as number;
  const counts = Array.from({ length: size }, () => [0, 0, 1, 5][random.nextBelow(4)] as number);
  const isUnequal = random.nextBelow(2) === 0;
  const isInPlace = random.nextBelow(2) === 0;
  const kind = random.nextBelow(11);
  const options = { timeoutMs };
  const mine = (n: number): HostBuffer => valuesOf(dtype, n, seed * 8 + rank);
  const parts = isUnequal ? counts : counts.map(() => length);
  const own = parts[rank] as number;
  const before = parts.slice(0, rank).reduce((a, b) => a + b, 0);
  const total = parts.reduce((a, b) => a + b, 0);
  const put = (n: number): DataBuffer => buffers.put(mine(n));
  switch (kind) {
    case 0:
    case 1: {
      const data = put(length);
      return { title: 'allReduce', work: group.allReduce(data, op, options), result: data };
    }
    case 2: {
      const data = put(length);
      return { title: 'broadcast', work: group.broadcast(data, root, options), result: data };
    }
    case 3: {
      const recv = put(total);
      const send = isInPlace ? buffers.part(recv, before, own) : put(own);
      return { title: 'allGather', work: group.allGather(send, recv, { counts: parts, ...options }), result: recv };
    }
    case 4: {
      const send = put(total);
      const recv = isInPlace ? buffers.part(send, before, own) : put(own);
      const work = group.reduceScatter(send, recv, op, { counts: parts, ...options });
      return { title: 'reduceScatter', work, result: recv };
    }
    case 5: {
      const send = put(length);
      const recv = rank === root ? (isInPlace ? send : put(length)) : undefined;
      return { title: 'reduce', work: group.reduce(send, recv, root, op, options), result: recv };
    }
    case 6: {
      const recv = rank === root ? put(length * size) : undefined;
      const send = recv !== undefined && isInPlace ? buffers.part(recv, length * rank, length) : put(length);
      return { title: 'gather', work: group.gather(send, recv, root, options), result: recv };
    }
    case 7: {
      const send = rank === root ? put(length * size) : undefined;
      const recv = send !== undefined && isInPlace ? buffers.part(send, length * rank, length) : put(length);
      return { title: 'scatter', work: group.scatter(send, recv, root, options), result: recv };
    }
    case 8: {
      const lengthOf = (from: number, to: number): number => ((counts[from] as number) * (counts[to] as number)) % 7;
      const sendCounts = counts.map((_unused, to) => lengthOf(rank, to));
      const recvCounts = counts.map((_unused, from) => lengthOf(from, rank));
      const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);
      const recv = put(sum(recvCounts) + 2); // more than the counts cover
      const work = group.allToAll(put(sum(sendCounts)), recv, { sendCounts, recvCounts, ...options });
      return { title: 'allToAll', work, result: recv };
    }
    case 9: {
      if (size === 1) return { title: 'barrier', work: group.barrier(options) };
      const recv = put(length);
      const [next, last] = [(rank + 1) % size, (rank + size - 1) % size];
      const work = group.batch(
        [
          { op: 'send', data: put(length), peer: next, tag: 2 ** 32 - 1 },
          { op: 'recv', data: recv, peer: last, tag: 2 ** 32 - 1 },
        ],
        options,
      );
      return { title: 'batch', work, result: recv };
    }
    default: {
      const other = (root + 1) % size;
      if (size === 1 || (rank !== root && rank !== other)) return { title: 'nothing', work: Promise.resolve() };
      const data = put(length);
      if (rank === root) return { title: 'send', work: group.send(data, other, 7, options) };
      return { title: 'recv', work: group.recv(data, root, 7, options), result: data };
    }
  }
}

/** The rank's own side of a program: which buffers are on its device, and what happens before each call. */
export interface ProgramRank {
  readonly device?: BackendDevice | undefined;
  readonly onCall?: ((index: number) => void) | undefined;
}

/** Never rejects. Calls whose group this rank is not in are left out. */
export async function runNcclProgram(
  backend: Backend,
  { seed, numCalls, timeoutMs, hasAverages }: NcclProgram,
  { device, onCall }: ProgramRank = {},
): Promise<CallOutcome[]> {
  const random = new Generator(seed);
  const own = new Generator(seed * 31 + backend.rank);
  const groups: { readonly ranks: readonly number[]; readonly backend: Backend | undefined }[] = [
    { ranks: Array.from({ length: backend.worldSize }, (_unused, rank) => rank), backend },
  ];
  const outcomes: Promise<CallOutcome>[] = [];
  const settled = async (title: string, call: () => Promise<string | undefined>): Promise<CallOutcome> => {
    try {
      const bytes = await call();
      return bytes === undefined ? { title } : { title, bytes };
    } catch (error) {
      return { title, error: error as Error };
    }
  };
  for (let index = 0; index < numCalls; index++) {
    onCall?.(index);
    const drawn = new Generator(random.nextBelow(2 ** 31));
    const place = groups[random.nextBelow(groups.length)] as (typeof groups)[number];
    const isSplit = groups.length < 5 && random.nextBelow(8) === 0;
    const isPause = random.nextBelow(5) === 0;
    const group = place.backend;
    if (isSplit) {
      const listed = place.ranks.map((_unused, rank) => rank).filter(() => drawn.nextBelow(3) > 0);
      const ranks = listed.length === 0 ? [0] : drawn.nextBelow(2) === 0 ? listed.reverse() : listed;
      let child: Backend | undefined;
      const splitting = settled(`${index} split`, async () => {
        child = await group?.split(ranks, { timeoutMs });
        return undefined;
      });
      outcomes.push(splitting);
      await splitting;
      groups.push({ ranks: ranks.map((rank) => place.ranks[rank] as number), backend: child });
    } else if (group !== undefined) {
      const buffers = new CallBuffers(device, own);
      const call = async (): Promise<string | undefined> => {
        let started: ReturnType<typeof start> | undefined;
        try {
          started = start({ group, random: drawn, buffers, seed: index, timeoutMs, hasAverages });
          title = `${index} ${started.title}`;
        } finally {
          buffers.dispose(started?.result);
        }
        const { work, result } = started;
        try {
          await work;
        } catch (error) {
          buffers.dispose();
          throw error;
        }
        return result && buffers.read(result);
      };
      let title = `${index}`;
      outcomes.push(settled(title, call).then((outcome) => ({ ...outcome, title, isTouched: buffers.isTouched })));
    }
    if (isPause) await Promise.all(outcomes);
    else if (own.nextBelow(4) === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  return Promise.all(outcomes);
}
