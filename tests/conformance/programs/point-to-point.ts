import type { Backend, P2pOp } from '../../../src/backend/backend';
import type { DType } from '../../../src/core/dtype';
import { filled, untouched } from '../../helpers/fill';
import { endingOf, leave, scribble, type Ending } from '../program';
import { toWireBuffer, type WireBuffer } from '../wire-buffer';

/** A message of one element. */
const message = (value: number): Int32Array => Int32Array.of(value);

/** Receive one message and return its value. */
async function received(backend: Backend, src: number, tag?: number): Promise<number> {
  const data = message(-1);
  await backend.recv(data, src, tag);
  return data[0] as number;
}

export const pointToPointPrograms = {
  /** Rank 0 sends a buffer of each case to rank 1, which returns them; both say how rank 0's buffers ended. */
  async transfer(
    backend: Backend,
    args: { readonly cases: readonly { readonly dtype: DType; readonly count: number }[] },
  ): Promise<WireBuffer[]> {
    const buffers: WireBuffer[] = [];
    for (const { dtype, count } of args.cases) {
      const data = backend.rank === 0 ? filled(dtype, count, backend.worldSize, 0) : untouched(dtype, count);
      if (backend.rank === 0) await backend.send(data, 1);
      if (backend.rank === 1) await backend.recv(data, 0);
      buffers.push(toWireBuffer(data));
      scribble(data);
    }
    return buffers;
  },

  /** Rank 0 launches `sends`, as [tag, value], all at once; rank 1 receives the tags one after another. */
  async tagged(
    backend: Backend,
    args: { readonly sends: readonly (readonly [number, number])[]; readonly receives: readonly number[] },
  ): Promise<number[]> {
    const values: number[] = [];
    if (backend.rank === 0) await Promise.all(args.sends.map(([tag, value]) => backend.send(message(value), 1, tag)));
    if (backend.rank === 1) for (const tag of args.receives) values.push(await received(backend, 0, tag));
    return values;
  },

  /** Rank 1 posts all receives before rank 0 sends anything; values by the order of posting. */
  async receivesFirst(backend: Backend, args: { readonly values: readonly number[] }): Promise<number[]> {
    if (backend.rank === 0) {
      await received(backend, 1, 1);
      for (const value of args.values) await backend.send(message(value), 1);
      return [];
    }
    const buffers = args.values.map(() => message(-1));
    const works = buffers.map((buffer) => backend.recv(buffer, 0));
    await backend.send(message(0), 0, 1);
    await Promise.all(works);
    return buffers.map((buffer) => buffer[0] as number);
  },

  /** A send to a rank that has not posted the receive, though it has made other calls: is it completed? */
  async rendezvous(backend: Backend): Promise<boolean[]> {
    if (backend.rank === 0) {
      const work = backend.send(message(1), 1, 1);
      await backend.send(message(2), 1, 2);
      const before = work.isCompleted;
      await backend.send(message(3), 1, 3);
      await work;
      return [before, work.isCompleted];
    }
    await received(backend, 0, 2);
    await received(backend, 0, 3);
    await received(backend, 0, 1);
    return [];
  },

  /** Each rank sends its rank to the next and receives from the one before, by two calls launched together. */
  async ring(backend: Backend): Promise<number> {
    const { rank, worldSize } = backend;
    const data = message(-1);
    const sending = backend.send(message(rank), (rank + 1) % worldSize);
    await backend.recv(data, (rank + worldSize - 1) % worldSize);
    await sending;
    return data[0] as number;
  },

  /** As `ring`, in one batch, receive listed first. */
  async batchRing(backend: Backend, args: { readonly count: number }): Promise<WireBuffer> {
    const { rank, worldSize } = backend;
    const data = untouched('float32', args.count);
    await backend.batch([
      { op: 'recv', data, peer: (rank + worldSize - 1) % worldSize },
      { op: 'send', data: filled('float32', args.count, worldSize, rank), peer: (rank + 1) % worldSize },
    ]);
    return toWireBuffer(data);
  },

  /** Every rank exchanges two messages a tag with every other, in one batch that each lists in an order of its own. */
  async batchAllPairs(backend: Backend): Promise<number[]> {
    const { rank, worldSize } = backend;
    const sends: P2pOp[] = [];
    const receives: (P2pOp & { readonly data: Int32Array })[] = [];
    for (let step = 1; step < worldSize; step++) {
      const peer = (rank + step) % worldSize;
      for (const tag of [7, 8]) {
        for (const turn of [0, 1]) {
          sends.push({ op: 'send', data: message(rank * 1000 + peer * 100 + tag * 10 + turn), peer, tag });
          receives.push({ op: 'recv', data: message(-1), peer, tag });
        }
      }
    }
    await backend.batch(rank % 2 === 0 ? [...sends, ...receives] : [...receives, ...sends]);
    return receives.map(({ data }) => data[0] as number).sort((a, b) => a - b);
  },

  /** A batch on one side meets single calls on the other. */
  async batchMeetsSingles(backend: Backend): Promise<number[]> {
    if (backend.rank === 0) {
      const data = message(-1);
      await backend.batch([
        { op: 'send', data: message(1), peer: 1 },
        { op: 'send', data: message(2), peer: 1 },
        { op: 'recv', data, peer: 1 },
      ]);
      return [data[0] as number];
    }
    const first = await received(backend, 0);
    const second = await received(backend, 0);
    await backend.send(message(3), 0);
    return [first, second];
  },

  async emptyBatch(backend: Backend): Promise<Ending> {
    return endingOf(backend.batch([]));
  },

  /** The same pair and tag in two groups: rank 0 sends in the world first, rank 1 receives in the subgroup first. */
  async groupsDoNotMix(backend: Backend): Promise<number[]> {
    const sub = await backend.split([0, 1]);
    const values: number[] = [];
    if (sub?.rank === 0) await Promise.all([backend.send(message(1), 1), sub.send(message(2), 1)]);
    if (sub?.rank === 1) values.push(await received(sub, 0), await received(backend, 0));
    await leave(backend, [sub]);
    return values;
  },

  /** Rank 0 sends what rank 1 does not expect; both then try once more, and the world still works. */
  async disagree(
    backend: Backend,
    args: {
      readonly send: { readonly dtype: DType; readonly count: number };
      readonly recv: { readonly dtype: DType; readonly count: number };
      readonly inBatch: boolean;
    },
  ): Promise<{ first: Ending; later: Ending; world: number }> {
    const group = (await backend.split([0, 1])) as Backend;
    const op = backend.rank === 0 ? 'send' : 'recv';
    const data = untouched(args[op].dtype, args[op].count);
    const peer = 1 - backend.rank;
    const call = args.inBatch ? group.batch([{ op, data, peer }]) : group[op](data, peer);
    const first = await endingOf(call);
    const later = await endingOf(group.barrier());
    const sum = message(1);
    await backend.allReduce(sum, 'Sum');
    await leave(backend, [group]);
    return { first, later, world: sum[0] as number };
  },
};
