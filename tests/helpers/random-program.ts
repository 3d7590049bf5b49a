/** A long mixed program that is the same on every backend, for comparing their bits: all ranks draw from one seed. */
import { createHash } from 'node:crypto';
import type { Backend } from '../../src/backend/backend';
import { allocateBuffer, bytesOf, DTYPES, isFloatDType, type DType, type HostBuffer } from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { isBitOp, ReduceOp } from '../../src/core/reduce-op';
import type { Work } from '../../src/core/work';
import { storeValues } from './fill';

export interface RandomProgram {
  readonly seed: number;
  readonly numCalls: number;
  /** Elements of the largest buffers. */
  readonly maxLength: number;
}

/** A call in flight and the buffer that its result is in. */
interface Launched {
  readonly work: Work;
  readonly result: HostBuffer | undefined;
}

/** Values that depend on the rank, so that a part in the wrong place is seen. */
function randomBuffer(dtype: DType, length: number, seed: number): HostBuffer {
  const scale = isFloatDType(dtype) ? 2 ** -24 : 2 ** -17;
  const values = new Float64Array(length);
  // A multiplicative hash (Knuth): a generator would take most of the test's time.
  for (let i = 0; i < length; i++) values[i] = ((Math.imul(i + seed * 7919, 0x9e3779b1) >>> 8) - 2 ** 23) * scale;
  return storeValues(dtype, values);
}

const OPS = Object.values(ReduceOp);

/** One call of the group, the same on all its ranks; `random` is in the same state on all ranks of the world. */
function launch(group: Backend, random: Generator, maxLength: number, callSeed: number): Launched {
  const { rank, worldSize: size } = group;
  const dtype = DTYPES[random.nextBelow(DTYPES.length)] as DType;
  const ops = OPS.filter((op) => !isBitOp(op) || !isFloatDType(dtype));
  const op = ops[random.nextBelow(ops.length)] as ReduceOp;
  const root = random.nextBelow(size);
  // Mostly small, sometimes none, sometimes enough for several chunks.
  const length = Math.floor(maxLength ** random.nextDouble()) - 1;
  const counts = Array.from({ length: size }, () => random.nextBelow(Math.min(64, length + 1) + 1));
  const own = counts[rank] as number;
  const total = counts.reduce((sum, count) => sum + count, 0);
  const kind = random.nextBelow(11);
  const mine = (n: number): HostBuffer => randomBuffer(dtype, n, callSeed * 64 + rank);
  const empty = (n: number): HostBuffer => allocateBuffer(dtype, n);
  const inPlace = (data: HostBuffer, work: Work): Launched => ({ work, result: data });
  const part = Math.ceil(length / size);
  switch (kind) {
    case 0:
    case 1: {
      const data = mine(length);
      return inPlace(data, group.allReduce(data, op));
    }
    case 2: {
      const data = mine(length);
      return inPlace(data, group.broadcast(data, root));
    }
    case 3: {
      const recv = empty(total);
      return inPlace(recv, group.allGather(mine(own), recv, { counts }));
    }
    case 4: {
      const recv = empty(own);
      return inPlace(recv, group.reduceScatter(mine(total), recv, op, { counts }));
    }
    case 5: {
      const recv = empty(part);
      return inPlace(recv, group.reduceScatter(mine(part * size), recv, op));
    }
    case 6: {
      const recv = rank === root ? empty(length) : undefined;
      return { work: group.reduce(mine(length), recv, root, op), result: recv };
    }
    case 7: {
      const recv = rank === root ? empty(part * size) : undefined;
      return { work: group.gather(mine(part), recv, root), result: recv };
    }
    case 8: {
      const recv = empty(part);
      return inPlace(recv, group.scatter(rank === root ? mine(part * size) : undefined, recv, root));
    }
    case 9: {
      const lengthOf = (from: number, to: number): number =>
        ((counts[from] as number) * 7 + (counts[to] as number)) % 50;
      const sendCounts = counts.map((_unused, to) => lengthOf(rank, to));
      const recvCounts = counts.map((_unused, from) => lengthOf(from, rank));
      const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);
      const recv = empty(sum(recvCounts));
      return inPlace(recv, group.allToAll(mine(sum(sendCounts)), recv, { sendCounts, recvCounts }));
    }
    default: {
      if (size === 1) return { work: group.barrier(), result: undefined };
      const recv = empty(length);
      const [next, last] = [(rank + 1) % size, (rank + size - 1) % size];
      const tag = random.nextBelow(3);
      return inPlace(
        recv,
        group.batch([
          { op: 'send', data: mine(length), peer: next, tag },
          { op: 'recv', data: recv, peer: last, tag },
        ]),
      );
    }
  }
}

/** Returns a digest of each result, by call; an empty string for calls that this rank had no part or result in. */
export async function runRandomProgram(
  backend: Backend,
  { seed, numCalls, maxLength }: RandomProgram,
): Promise<string[]> {
  const random = new Generator(seed);
  const groups: (Backend | undefined)[] = [backend];
  const members = [Array.from({ length: backend.worldSize }, (_unused, rank) => rank)];
  for (let i = 0; i < 3; i++) {
    const ranks = (members[0] as number[]).filter(() => random.nextBelow(3) > 0);
    if (ranks.length === 0) ranks.push(random.nextBelow(backend.worldSize));
    if (random.nextBelow(2) === 0) ranks.reverse();
    members.push(ranks);
    groups.push(await backend.split(ranks));
  }
  const digests = new Array<string>(numCalls).fill('');
  let inFlight: { readonly index: number; readonly launched: Launched }[] = [];
  const settle = async (): Promise<void> => {
    for (const { index, launched } of inFlight) {
      await launched.work;
      if (launched.result === undefined) continue;
      digests[index] = createHash('sha256').update(bytesOf(launched.result)).digest('base64').slice(0, 16);
    }
    inFlight = [];
  };
  for (let index = 0; index < numCalls; index++) {
    const group = groups[random.nextBelow(groups.length)];
    const callSeed = seed * 1000 + index;
    // Every rank draws alike, whether it is a member or not.
    const drawn = new Generator(random.nextBelow(2 ** 31));
    if (group !== undefined) inFlight.push({ index, launched: launch(group, drawn, maxLength, callSeed) });
    if (random.nextBelow(4) === 0) await settle();
  }
  await settle();
  await backend.barrier();
  for (const group of groups.slice(1)) await group?.close();
  return digests;
}
