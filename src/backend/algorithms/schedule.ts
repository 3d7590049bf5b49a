/**
 * What one rank does in a collective, as pure data: no buffers, no network, no time.
 *
 * [Note: schedules] Lengths and positions are elements. The k-th send from rank a to rank b is the k-th receive of b
 * from a; lengths agree, and a message may be empty: it then says "I am here", or "I am done with what you sent".
 * Steps run as soon as the steps that they name in `after` are done; besides, the sends to one peer leave, and the
 * receives from one peer arrive, in the order of the list. A send is done when its region may be written again.
 *
 * [Note: windows] A sender never runs ahead of its receiver's memory: a message that goes into scratch that was used
 * before is sent only after something came back that the receiver sent when that scratch was free again (the result of
 * an earlier chunk, or an empty message). So nobody ever has to hold a message that it has no place for, and no
 * executor needs a credit scheme. The same causality lets a result overwrite what was sent to compute it: when the
 * result is here, the bytes that it was made of have left.
 */

/** Where a region lies. Input and output may be the same memory, as in an all-reduce in place. */
export type Space = 'input' | 'output' | 'scratch';

export interface Region {
  readonly space: Space;
  readonly start: number;
  readonly length: number;
}

interface Dependent {
  /** Indexes of steps that must be done before this one begins. */
  readonly after: readonly number[];
}

export interface SendStep extends Dependent {
  readonly kind: 'send';
  readonly peer: number;
  readonly region: Region;
}

export interface ReceiveStep extends Dependent {
  readonly kind: 'receive';
  readonly peer: number;
  readonly region: Region;
}

/** Reduce the inputs, in this order (rank order, unless partial), element by element. `region` may be one of them. */
export interface ReduceStep extends Dependent {
  readonly kind: 'reduce';
  readonly inputs: readonly Region[];
  readonly region: Region;
  /** The result is not that of all ranks yet: an average is still a sum. A `finish` follows once it is. */
  readonly isPartial: boolean;
}

/** What partial reductions have collected from all ranks becomes the result: an average is divided. */
export interface FinishStep extends Dependent {
  readonly kind: 'finish';
  readonly region: Region;
}

export interface CopyStep extends Dependent {
  readonly kind: 'copy';
  readonly from: Region;
  readonly region: Region;
}

export type Step = SendStep | ReceiveStep | ReduceStep | FinishStep | CopyStep;

export interface Schedule {
  /** Elements of scratch memory. */
  readonly scratchLength: number;
  readonly steps: readonly Step[];
}

/** The rank whose schedule is asked for, and the size of its group. */
export interface Place {
  readonly rank: number;
  readonly size: number;
}

/** Message that carries no element. */
export const NOTHING: Region = { space: 'scratch', start: 0, length: 0 };

/** Collects steps; each method returns the new step's index, for `after` of later ones. */
export class ScheduleBuilder {
  readonly #steps: Step[] = [];
  readonly #scratchLength: number;

  constructor(scratchLength = 0) {
    this.#scratchLength = scratchLength;
  }

  send(peer: number, region: Region, after: readonly number[] = []): number {
    return this.#steps.push({ kind: 'send', peer, region, after }) - 1;
  }

  receive(peer: number, region: Region, after: readonly number[] = []): number {
    return this.#steps.push({ kind: 'receive', peer, region, after }) - 1;
  }

  reduce(inputs: readonly Region[], region: Region, after: readonly number[]): number {
    return this.#steps.push({ kind: 'reduce', inputs, region, after, isPartial: false }) - 1;
  }

  reducePartially(inputs: readonly Region[], region: Region, after: readonly number[]): number {
    return this.#steps.push({ kind: 'reduce', inputs, region, after, isPartial: true }) - 1;
  }

  finish(region: Region, after: readonly number[]): number {
    return this.#steps.push({ kind: 'finish', region, after }) - 1;
  }

  copy(from: Region, region: Region, after: readonly number[] = []): number {
    return this.#steps.push({ kind: 'copy', from, region, after }) - 1;
  }

  build(): Schedule {
    return { scratchLength: this.#scratchLength, steps: this.#steps };
  }
}

/** The other ranks, beginning with the next: if all ranks go round like this, they do not all write to rank 0 first. */
export function peersOf({ rank, size }: Place): number[] {
  return Array.from({ length: size - 1 }, (_unused, step) => (rank + step + 1) % size);
}
