import type { Backend } from '../../../src/backend/backend';
import { type DType, viewBuffer } from '../../../src/core/dtype';
import { filled, untouched } from '../../helpers/fill';
import { scribble } from '../program';
import { toWireBuffer, type WireBuffer } from '../wire-buffer';
import type { Held } from './reductions';

export interface MovementCase {
  readonly dtype: DType;
  /** Elements of one rank's part. */
  readonly count: number;
}

export interface RootedCase extends MovementCase {
  readonly root: number;
  readonly inPlace: boolean;
}

export interface GatheredCase extends MovementCase {
  readonly inPlace: boolean;
  /** Unequal parts; `count` is then of no meaning. */
  readonly counts?: readonly number[];
}

export interface ExchangeCase extends MovementCase {
  /** `parts[i][j]` elements go from rank i to rank j; undefined: `count` each. */
  readonly parts?: readonly (readonly number[])[];
  /** Elements at the end of both buffers that the counts leave over. */
  readonly spare?: number;
}

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

export const movementPrograms = {
  async broadcast(
    backend: Backend,
    args: { readonly cases: readonly Omit<RootedCase, 'inPlace'>[] },
  ): Promise<WireBuffer[]> {
    const results: WireBuffer[] = [];
    for (const { dtype, count, root } of args.cases) {
      const data = filled(dtype, count, backend.worldSize, backend.rank);
      await backend.broadcast(data, root);
      results.push(toWireBuffer(data));
      scribble(data);
    }
    return results;
  },

  async allGather(backend: Backend, args: { readonly cases: readonly GatheredCase[] }): Promise<Held[]> {
    const { rank, worldSize } = backend;
    const results: Held[] = [];
    for (const { dtype, count, counts, inPlace } of args.cases) {
      const parts = counts ?? new Array<number>(worldSize).fill(count);
      const own = filled(dtype, parts[rank] as number, worldSize, rank);
      const recv = untouched(dtype, sum(parts));
      const slice = viewBuffer(recv, sum(parts.slice(0, rank)), own.length);
      if (inPlace) (slice as Uint8Array).set(own as Uint8Array);
      const send = inPlace ? slice : own;
      await backend.allGather(send, recv, counts === undefined ? undefined : { counts });
      results.push({ send: toWireBuffer(send), recv: toWireBuffer(recv) });
      scribble(send, recv);
    }
    return results;
  },

  async gather(backend: Backend, args: { readonly cases: readonly RootedCase[] }): Promise<Held[]> {
    const { rank, worldSize } = backend;
    const results: Held[] = [];
    for (const { dtype, count, root, inPlace } of args.cases) {
      const own = filled(dtype, count, worldSize, rank);
      const recv = rank === root ? untouched(dtype, count * worldSize) : undefined;
      const slice = recv === undefined ? undefined : viewBuffer(recv, rank * count, count);
      if (inPlace && slice !== undefined) (slice as Uint8Array).set(own as Uint8Array);
      const send = inPlace ? (slice ?? own) : own;
      await backend.gather(send, recv, root);
      results.push({ send: toWireBuffer(send), recv: recv === undefined ? null : toWireBuffer(recv) });
      scribble(send, recv);
    }
    return results;
  },

  async scatter(
    backend: Backend,
    args: { readonly cases: readonly RootedCase[] },
  ): Promise<{ recv: WireBuffer; send: WireBuffer | null }[]> {
    const { rank, worldSize } = backend;
    const results: { recv: WireBuffer; send: WireBuffer | null }[] = [];
    for (const { dtype, count, root, inPlace } of args.cases) {
      const send = rank === root ? filled(dtype, count * worldSize, worldSize, rank) : undefined;
      const slice = send === undefined || !inPlace ? undefined : viewBuffer(send, rank * count, count);
      const recv = slice ?? untouched(dtype, count);
      await backend.scatter(send, recv, root);
      results.push({ recv: toWireBuffer(recv), send: send === undefined ? null : toWireBuffer(send) });
      scribble(send, recv);
    }
    return results;
  },

  /** Rank i's element k for rank j is element k of the fill, counted over all that i sends. */
  async allToAll(backend: Backend, args: { readonly cases: readonly ExchangeCase[] }): Promise<Held[]> {
    const { rank, worldSize } = backend;
    const results: Held[] = [];
    for (const { dtype, count, parts, spare = 0 } of args.cases) {
      const sendCounts = parts?.[rank];
      const recvCounts = parts?.map((row) => row[rank] as number);
      const sendLength = spare + (sendCounts === undefined ? count * worldSize : sum(sendCounts));
      const recvLength = spare + (recvCounts === undefined ? count * worldSize : sum(recvCounts));
      const send = filled(dtype, sendLength, worldSize, rank);
      const recv = untouched(dtype, recvLength);
      await backend.allToAll(send, recv, parts === undefined ? undefined : { sendCounts, recvCounts });
      results.push({ send: toWireBuffer(send), recv: toWireBuffer(recv) });
      scribble(send, recv);
    }
    return results;
  },

  /** Before the last rank joins each barrier it asks the others whether they are through: returns what it heard. */
  async barrier(backend: Backend, args: { readonly rounds: number }): Promise<boolean[]> {
    const { rank, worldSize } = backend;
    const isThrough: boolean[] = [];
    for (let round = 0; round < args.rounds; round++) {
      const last = (worldSize - 1 + round) % worldSize;
      if (rank !== last) {
        const work = backend.barrier();
        await backend.send(Uint8Array.of(work.isCompleted ? 1 : 0), last, round);
        await work;
        continue;
      }
      for (let peer = 0; peer < worldSize; peer++) {
        if (peer === last) continue;
        const answer = new Uint8Array(1);
        await backend.recv(answer, peer, round);
        isThrough.push(answer[0] === 1);
      }
      await backend.barrier();
    }
    return isThrough;
  },
};
