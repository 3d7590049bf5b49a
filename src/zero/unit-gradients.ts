import { bytesOf, isHalfDType } from '../core/dtype';
import { ReduceOp } from '../core/reduce-op';
import type { ScratchPool } from '../core/scratch-pool';
import type { ProcessGroup } from '../process-group/process-group';
import { addInto } from '../tensor/operators/accumulate';
import { convertBuffer } from '../tensor/operators/cast';
import { Storage } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';
import { flatTensor, type FlatUnit, type NamedParameter } from './flat-unit';
import { GradientBuffer } from './gradient-buffer';
import type { Piece } from './shard-plan';

/**
 * [Note: where gradients are] Stage 0, 'grad': `.grad` is a view of a flat buffer, in which the averages of all ranks
 * arrive. Stage 1, 'buffer': likewise, but only the own part is averaged; `.grad` is undefined then, and the buffer stays.
 * Stages 2 and 3, 'part': a gradient that is ready is copied into a buffer that is there for one collective only, and
 * what is kept is the average of the own part. Gradients that were computed inside noSync are in `.grad` at every stage.
 */
export type GradientHome = 'grad' | 'buffer' | 'part';

interface Flight {
  /** Where the average arrives. */
  readonly average: Tensor;
  /** Slots whose gradient was dropped meanwhile. */
  readonly dropped: Set<number>;
}

/** The gradients of one unit, from the moment they are computed until the optimizer has used them. */
export class UnitGradients {
  readonly unit: FlatUnit;
  readonly #home: GradientHome;
  readonly #group: ProcessGroup;
  /** Of home 'part': memory of the flat buffers, which nobody else ever holds. */
  readonly #pool: ScratchPool;
  #flat: GradientBuffer | undefined;
  /** The own part of all averages since the last zeroGrad; of homes 'buffer' and 'part'. */
  #average: Tensor | undefined;
  /** Slots that have an average, the same on every rank. */
  readonly #averaged = new Set<number>();
  /** Slots whose gradient holds something that has not been averaged. */
  readonly #local = new Set<number>();
  /** Slots whose local gradient is in the flat buffer instead of in `.grad`. */
  readonly #taken = new Set<number>();
  #flight: Flight | undefined;
  #isOwnChange = false;
  /** Gradients that backward has yet to deliver in this pass. */
  missing = 0;

  constructor(unit: FlatUnit, home: GradientHome, group: ProcessGroup, pool: ScratchPool) {
    this.unit = unit;
    this.#home = home;
    this.#group = group;
    this.#pool = pool;
  }

  get names(): string[] {
    return this.unit.names;
  }

  /** Bytes that a synchronisation averages. */
  get bytes(): number {
    return this.unit.wholeBytes;
  }

  /** A backward begins, and will reach the parameters for which `isReached` holds. */
  begin(isReached: (parameter: Tensor) => boolean): void {
    this.missing = this.unit.members.filter(({ parameter }) => isReached(parameter)).length;
    if (this.missing > 0 && this.#home !== 'part') this.#makeFlat();
  }

  /** The gradient of a slot is complete on this rank; with `take`, `.grad` gives it up. */
  ready(slot: number, take: boolean): void {
    this.missing--;
    this.#local.add(slot);
    if (take && this.#home === 'part') this.#take(slot);
  }

  /** Whether this rank has anything to average for a slot, or has an average of it from before. */
  hasGradient(slot: number): boolean {
    return this.#averaged.has(slot) || this.#isLocal(slot);
  }

  /** Whether all ranks have an average of a slot. */
  hasAverage(slot: number): boolean {
    return this.#home === 'grad' ? this.#member(slot).parameter.grad !== undefined : this.#averaged.has(slot);
  }

  /** The averages that this rank steps with, as long as the piece; undefined where no rank has had a gradient. */
  averageOf(piece: Piece): Storage | undefined {
    if (this.#home === 'grad') return this.#member(piece.slot).parameter.grad?.storage.view(piece.start, piece.length);
    if (!this.#averaged.has(piece.slot)) return undefined;
    return this.#average?.storage.view(piece.offset, piece.length);
  }

  /** Names of parameters whose gradient is this rank's own. */
  localNames(): string[] {
    return this.unit.members.filter((_member, slot) => this.#isLocal(slot)).map(({ name }) => name);
  }

  /**
   * Launch the collective that averages this rank's gradients with the others'; zeros where there is none.
   * @returns which slots this rank had a gradient of, and when the average is there
   */
  launch(): { readonly used: readonly boolean[]; readonly arrived: Promise<void> } {
    const flat = this.#makeFlat();
    const used = this.unit.members.map((_member, slot) => this.#fill(slot, flat));
    this.#local.clear();
    this.#taken.clear();
    const average = this.#home === 'grad' ? flat.tensor : this.#home === 'buffer' ? flat.part : this.#makeAverage();
    const label = `gradients ${this.unit.contents}`;
    const work =
      this.#home === 'grad'
        ? this.#group.allReduce(flat.tensor, ReduceOp.Average, { label })
        : this.#group.reduceScatterInto(average, flat.tensor, ReduceOp.Average, { label });
    this.#flight = { average, dropped: new Set() };
    return { used, arrived: this.#land(work) };
  }

  async #land(work: PromiseLike<void>): Promise<void> {
    await work;
    if (this.#home === 'part') this.#releaseFlat();
  }

  /** After the collectives of all units: the average is final. `isUsed(slot)`: some rank had a gradient. */
  deliver(isUsed: (slot: number) => boolean): void {
    const flight = this.#flight as Flight;
    this.#flight = undefined;
    this.unit.members.forEach(({ parameter }, slot) => {
      if (flight.dropped.has(slot)) this.#zeroPiece(slot, flight.average);
      else if (isUsed(slot)) {
        this.#averaged.add(slot);
        if (this.#home === 'grad') parameter.grad = this.#flat?.views[slot];
      }
    });
    if (this.#home !== 'grad') this.#addAverage(flight.average);
    this.#releaseIfEmpty();
  }

  /** The program has set `.grad` of a slot to undefined. */
  drop(slot: number): void {
    if (this.#isOwnChange) return;
    this.#local.delete(slot);
    this.#taken.delete(slot);
    this.#averaged.delete(slot);
    if (this.#flight !== undefined) this.#flight.dropped.add(slot);
    else if (this.#average !== undefined && this.#averaged.size > 0) this.#zeroPiece(slot, this.#average);
    this.#releaseIfEmpty();
  }

  /** After a backward that failed: what was taken is in `.grad` again, as a backward without ZeRO would have left it. */
  restore(): void {
    for (const slot of this.#taken) {
      const copy = this.#flat?.views[slot]?.storage.clone('gradients') as Storage;
      const { parameter } = this.#member(slot);
      parameter.grad = keep(new Tensor({ storage: copy, shape: parameter.shape }));
    }
    this.#taken.clear();
    if (this.#home === 'part') this.#releaseFlat();
  }

  /** Keep 16-bit averages in float32 from now on, before they are divided by a loss scale. */
  widen(): void {
    if (!isHalfDType(this.unit.dtype)) return;
    if (this.#home === 'grad') {
      for (const { parameter } of this.unit.members) {
        if (parameter.grad?.dtype === this.unit.dtype) parameter.grad = widened(parameter.grad);
      }
    }
    if (this.#average === undefined || !isHalfDType(this.#average.dtype)) return;
    const wide = widened(this.#average);
    this.#forgetAverage();
    this.#average = wide;
  }

  /** Let go of all memory; local gradients that are no views stay. */
  release(): void {
    this.#forgetAverage();
    this.#averaged.clear();
    this.#releaseFlat();
  }

  #isLocal(slot: number): boolean {
    if (this.#taken.has(slot)) return true;
    if (this.#member(slot).parameter.grad === undefined) return false;
    return this.#home !== 'grad' || this.#local.has(slot);
  }

  #take(slot: number): void {
    const { parameter } = this.#member(slot);
    this.#makeFlat().write(slot, parameter.grad);
    this.#takeAway(parameter);
    this.#taken.add(slot);
  }

  /** Put a slot's gradient in its place in the buffer. @returns whether there is one */
  #fill(slot: number, flat: GradientBuffer): boolean {
    if (this.#taken.has(slot)) return true;
    const { parameter } = this.#member(slot);
    const gradient = parameter.grad;
    const view = flat.views[slot];
    if (gradient !== view) flat.write(slot, gradient);
    if (gradient === undefined) return false;
    if (this.#home === 'grad') parameter.grad = view;
    else this.#takeAway(parameter);
    return true;
  }

  #takeAway(parameter: Tensor): void {
    this.#isOwnChange = true;
    parameter.grad = undefined;
    this.#isOwnChange = false;
  }

  /** Add what has arrived to what earlier synchronised backwards left; 16-bit sums are kept in float32. */
  #addAverage(arrived: Tensor): void {
    if (this.#average === undefined) {
      this.#average = arrived;
      return;
    }
    this.widen();
    addInto(this.#average.storage, arrived.storage);
    if (arrived !== this.#flat?.part) arrived.dispose();
  }

  #zeroPiece(slot: number, average: Tensor): void {
    if (this.#home === 'grad') return;
    const piece = this.unit.pieceOf(slot);
    if (piece !== undefined) bytesOf(average.storage.view(piece.offset, piece.length).buffer).fill(0);
  }

  #makeAverage(): Tensor {
    const { dtype, partSize } = this.unit.plan;
    return flatTensor(Storage.allocate(dtype, partSize, 'gradients'));
  }

  /** The flat buffer, with room for new gradients: an average in its own part moves out. */
  #makeFlat(): GradientBuffer {
    if (this.#flat !== undefined) {
      if (this.#average === this.#flat.part) this.#average = flatTensor(this.#flat.part.storage.clone('gradients'));
      return this.#flat;
    }
    const isPart = this.#home === 'part';
    const flat = new GradientBuffer(this.unit, isPart ? 'communication' : 'gradients', isPart ? this.#pool : undefined);
    this.#flat = flat;
    if (!isPart) {
      this.unit.members.forEach(({ parameter }, slot) => (parameter.gradientBuffer = flat.views[slot]));
    }
    return flat;
  }

  #releaseIfEmpty(): void {
    if (this.#flight !== undefined || this.#averaged.size > 0 || this.#taken.size > 0) return;
    this.#forgetAverage();
    if (this.unit.members.some(({ parameter }) => parameter.grad !== undefined)) return;
    this.#releaseFlat();
  }

  #forgetAverage(): void {
    if (this.#average !== undefined && this.#average !== this.#flat?.part) this.#average.dispose();
    this.#average = undefined;
  }

  #releaseFlat(): void {
    const flat = this.#flat;
    if (flat === undefined) return;
    this.#flat = undefined;
    this.unit.members.forEach(({ parameter }, slot) => {
      if (parameter.gradientBuffer === flat.views[slot]) parameter.gradientBuffer = undefined;
    });
    flat.release();
  }

  #member(slot: number): NamedParameter {
    return this.unit.members[slot] as NamedParameter;
  }
}

function widened({ storage, shape }: Tensor): Tensor {
  return keep(new Tensor({ storage: Storage.of(convertBuffer(storage, 'float32'), 'gradients'), shape }));
}
