/** Runs a soak plan on one rank, whatever its backend, and gives a digest of what each call left in its buffers. */
import { createHash } from 'node:crypto';
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { Backend } from '../../src/backend/backend';
import { bytesOf, type HostBuffer } from '../../src/core/dtype';
import { filled, untouched } from '../helpers/fill';
import { SOAK_GROUPS, soakPlan, type SoakCall } from './soak-plan';

export interface SoakArgs {
  readonly seed: number;
  readonly numCalls: number;
}

/** A call in flight: awaited, its buffers hold the result. */
interface Launched {
  readonly call: SoakCall;
  readonly works: readonly PromiseLike<unknown>[];
  readonly buffers: readonly HostBuffer[];
}

/** Digests by call; 'outside' where this rank is not in the group. */
export async function soak(backend: Backend, { seed, numCalls }: SoakArgs): Promise<string[]> {
  const groups: (Backend | undefined)[] = [];
  for (const ranks of SOAK_GROUPS) groups.push(await backend.split(ranks));
  const digests: string[] = [];
  for (const round of soakPlan(seed, numCalls)) {
    if (round.lateRank === backend.rank && round.lateMs > 0) await sleepMs(round.lateMs);
    const launched = round.calls.map((call) => {
      const group = groups[call.group];
      return group === undefined ? undefined : launch(group, call);
    });
    for (const position of round.awaitOrder) {
      const { index } = round.calls[position] as SoakCall;
      digests[index] = await finish(launched[position]);
    }
  }
  await backend.barrier();
  for (const group of groups) await group?.close();
  return digests;
}

async function finish(launched: Launched | undefined): Promise<string> {
  if (launched === undefined) return 'outside';
  for (const work of launched.works) await work;
  const hash = createHash('sha1');
  for (const buffer of launched.buffers) hash.update(bytesOf(buffer));
  return hash.digest('hex').slice(0, 12);
}

function launch(group: Backend, call: SoakCall): Launched {
  const { op, dtype, reduceOp, count, root, start } = call;
  const { rank, worldSize: size } = group;
  const fill = (parts: number): HostBuffer => filled(dtype, parts * count, size, rank, 'rounding', start);
  const empty = (parts: number): HostBuffer => untouched(dtype, parts * count);
  const isRoot = rank === root;
  const one = (work: PromiseLike<unknown>, ...buffers: (HostBuffer | undefined)[]): Launched => ({
    call,
    works: [work],
    buffers: buffers.filter((buffer) => buffer !== undefined),
  });
  switch (op) {
    case 'allReduce': {
      const data = fill(1);
      return one(group.allReduce(data, reduceOp), data);
    }
    case 'broadcast': {
      const data = fill(1);
      return one(group.broadcast(data, root), data);
    }
    case 'allGather': {
      const recv = empty(size);
      return one(group.allGather(fill(1), recv), recv);
    }
    case 'reduceScatter': {
      const recv = empty(1);
      return one(group.reduceScatter(fill(size), recv, reduceOp), recv);
    }
    case 'reduce': {
      const recv = isRoot ? empty(1) : undefined;
      return one(group.reduce(fill(1), recv, root, reduceOp), recv);
    }
    case 'gather': {
      const recv = isRoot ? empty(size) : undefined;
      return one(group.gather(fill(1), recv, root), recv);
    }
    case 'scatter': {
      const recv = empty(1);
      return one(group.scatter(isRoot ? fill(size) : undefined, recv, root), recv);
    }
    case 'allToAll': {
      const recv = empty(size);
      return one(group.allToAll(fill(size), recv), recv);
    }
    case 'barrier':
      return one(group.barrier());
    case 'sendRecv': {
      const receiver = (root + 1) % size;
      if (isRoot) return one(group.send(fill(1), receiver, call.index % 3));
      const recv = empty(1);
      return rank === receiver ? one(group.recv(recv, root, call.index % 3), recv) : { call, works: [], buffers: [] };
    }
    case 'batch': {
      const recv = empty(1);
      const ring = [
        { op: 'recv' as const, data: recv, peer: (rank + size - 1) % size, tag: 7 },
        { op: 'send' as const, data: fill(1), peer: (rank + 1) % size, tag: 7 },
      ];
      return one(group.batch(ring), recv);
    }
  }
}
