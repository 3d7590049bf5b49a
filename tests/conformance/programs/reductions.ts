import type { Backend } from '../../../src/backend/backend';
import { type DType, viewBuffer } from '../../../src/core/dtype';
import type { ReduceOp } from '../../../src/core/reduce-op';
import { type Fill, filled, untouched } from '../../helpers/fill';
import { scribble } from '../program';
import { fromWireBuffer, toWireBuffer, type WireBuffer } from '../wire-buffer';

export interface ReductionCase {
  readonly dtype: DType;
  readonly op: ReduceOp;
  /** Elements of each rank's result. */
  readonly count: number;
  readonly fill: Fill;
}

export interface RootedReductionCase extends ReductionCase {
  readonly root: number;
  readonly inPlace: boolean;
}

export interface ScatteredReductionCase extends ReductionCase {
  readonly inPlace: boolean;
  /** Unequal parts; `count` is then of no meaning. */
  readonly counts?: readonly number[];
}

/** What a rank held afterwards; null where it passed no buffer. */
export interface Held {
  readonly send: WireBuffer;
  readonly recv: WireBuffer | null;
}

export const reductionPrograms = {
  async allReduce(backend: Backend, args: { readonly cases: readonly ReductionCase[] }): Promise<WireBuffer[]> {
    const results: WireBuffer[] = [];
    for (const { dtype, op, count, fill } of args.cases) {
      const data = filled(dtype, count, backend.worldSize, backend.rank, fill);
      await backend.allReduce(data, op);
      results.push(toWireBuffer(data));
      scribble(data);
    }
    return results;
  },

  /** On values that the test gives, `inputs[rank]`. */
  async allReduceGiven(
    backend: Backend,
    args: { readonly cases: readonly { readonly op: ReduceOp; readonly inputs: readonly WireBuffer[] }[] },
  ): Promise<WireBuffer[]> {
    const results: WireBuffer[] = [];
    for (const { op, inputs } of args.cases) {
      const data = fromWireBuffer(inputs[backend.rank] as WireBuffer);
      await backend.allReduce(data, op);
      results.push(toWireBuffer(data));
      scribble(data);
    }
    return results;
  },

  async reduce(backend: Backend, args: { readonly cases: readonly RootedReductionCase[] }): Promise<Held[]> {
    const results: Held[] = [];
    for (const { dtype, op, count, fill, root, inPlace } of args.cases) {
      const send = filled(dtype, count, backend.worldSize, backend.rank, fill);
      const recv = backend.rank !== root ? undefined : inPlace ? send : untouched(dtype, count);
      await backend.reduce(send, recv, root, op);
      results.push({ send: toWireBuffer(send), recv: recv === undefined ? null : toWireBuffer(recv) });
      scribble(send, recv);
    }
    return results;
  },

  async reduceScatter(backend: Backend, args: { readonly cases: readonly ScatteredReductionCase[] }): Promise<Held[]> {
    const { rank, worldSize } = backend;
    const results: Held[] = [];
    for (const { dtype, op, count, counts, fill, inPlace } of args.cases) {
      const parts = counts ?? new Array<number>(worldSize).fill(count);
      const start = parts.slice(0, rank).reduce((sum, part) => sum + part, 0);
      const own = parts[rank] as number;
      const send = filled(
        dtype,
        parts.reduce((sum, part) => sum + part, 0),
        worldSize,
        rank,
        fill,
      );
      const recv = inPlace ? viewBuffer(send, start, own) : untouched(dtype, own);
      await backend.reduceScatter(send, recv, op, counts === undefined ? undefined : { counts });
      results.push({ send: toWireBuffer(send), recv: toWireBuffer(recv) });
      scribble(send, recv);
    }
    return results;
  },
};
