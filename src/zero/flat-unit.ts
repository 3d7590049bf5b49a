import {
  allocateBuffer,
  byteSize,
  copyBuffer,
  isSameBits,
  viewBuffer,
  type DType,
  type HostBuffer,
} from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { invariant } from '../core/invariant';
import type { Parameter } from '../nn/parameter';
import type { ProcessGroup } from '../process-group/process-group';
import { Storage } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';
import { paddedSize, piecesOf, type Piece, type UnitPlan } from './shard-plan';

/** A parameter and the name under which the module lists it. */
export interface NamedParameter {
  readonly name: string;
  readonly parameter: Parameter;
}

/**
 * What a rank keeps of a unit's parameters between uses. 'whole': all of them; its part is a view of the flat buffer.
 * 'part': its part alone; the flat buffer is there between `gather` and `release`.
 */
export type Residence = 'whole' | 'part';

/**
 * Parameters of one dtype, all trainable or all frozen, in one flat buffer that is cut into equal parts; see
 * [Note: parts and pieces]. It owns the parameters' memory: each is a view of the flat buffer.
 */
export class FlatUnit {
  /** Number of the unit, the same on every rank. */
  readonly index: number;
  readonly plan: UnitPlan;
  /** By slot. */
  readonly members: readonly NamedParameter[];
  readonly residence: Residence;
  /** What this rank's part holds. */
  readonly pieces: readonly Piece[];
  readonly #pieceOf: ReadonlyMap<number, Piece>;
  readonly #group: ProcessGroup;
  /** The part that this rank owns. */
  readonly partIndex: number;
  /** [numParts * partSize]; vacant while this rank holds its part alone. */
  readonly #whole: Tensor;
  #part: Tensor;
  #steps = 0;
  #updates = 0;
  #contents: string | undefined;

  /**
   * Move the parameters, with their values, into a flat buffer, converted where its dtype is another one. It is whole at first, whatever the residence, so that
   * values can be broadcast; call `adopt` and `release` then.
   *
   * @param members by slot of `plan`; a deferred parameter gets its first values here
   * @param plan with one part (every rank owns everything), or one for each rank of `group`
   * @throws InvalidArgumentError while a backward() or step() is at work on one of the parameters
   */
  constructor(
    index: number,
    plan: UnitPlan,
    members: readonly NamedParameter[],
    residence: Residence,
    group: ProcessGroup,
  ) {
    this.index = index;
    this.plan = plan;
    this.members = members;
    this.residence = residence;
    this.#group = group;
    this.partIndex = plan.numParts === 1 ? 0 : group.rank;
    this.pieces = piecesOf(plan, this.partIndex);
    this.#pieceOf = new Map(this.pieces.map((piece) => [piece.slot, piece]));
    const whole = Storage.allocate(plan.dtype, paddedSize(plan), 'parameters');
    this.#whole = flatTensor(whole);
    const part = whole.view(this.partIndex * plan.partSize, plan.partSize);
    this.#part = flatTensor(residence === 'whole' ? part : part.clone('parameters'));
    members.forEach(({ parameter }, slot) => {
      const { offset, numElements } = this.#slot(slot);
      parameter.moveInto(whole.view(offset, numElements), 'zeroWrap');
    });
  }

  get dtype(): DType {
    return this.plan.dtype;
  }

  /** False for a unit of frozen parameters. */
  get isTrainable(): boolean {
    return this.members.some(({ parameter }) => parameter.requiresGrad);
  }

  get names(): string[] {
    return this.members.map(({ name }) => name);
  }

  /**
   * What the unit's collectives carry, for their labels.
   *
   * [Note: steps in labels] Ranks compare labels, and messages show them. A rank that has left out a step(), or made it after
   * zeroGrad(), is out of step with the others, and would go on with other parameters than theirs; so labels count steps.
   */
  get contents(): string {
    this.#contents ??= `after step ${this.#steps} (${this.#updates} updates): ${this.names.join(', ')}`;
    return this.#contents;
  }

  get label(): string {
    return `parameters ${this.contents}`;
  }

  /** A step of the optimizer has updated so many of the parameters. */
  countStep(numUpdates: number): void {
    this.#steps++;
    this.#updates += numUpdates;
    this.#contents = undefined;
  }

  /** This rank's part, [partSize]. */
  get part(): Tensor {
    return this.#part;
  }

  /** The flat buffer, [numParts * partSize]. @throws InternalError while only the part is here */
  get whole(): Tensor {
    invariant(this.isWhole, `unit ${this.index} is whole`);
    return this.#whole;
  }

  /** Bytes of the flat buffer, padding included. */
  get wholeBytes(): number {
    return paddedSize(this.plan) * byteSize(this.dtype);
  }

  get isWhole(): boolean {
    return !this.#whole.storage.isVacant;
  }

  /** What this rank's part holds of the parameter in a slot; undefined if nothing. */
  pieceOf(slot: number): Piece | undefined {
    return this.#pieceOf.get(slot);
  }

  /** The elements of a piece of this rank's part. */
  elementsOf({ offset, length }: Piece): Storage {
    return this.#part.storage.view(offset, length);
  }

  /**
   * Take `values` over, elements of the parameter in a slot from `start` on, into this rank's part and, while it is there, the
   * flat buffer: they are all of the parameter then, or at least what the part has of it. Call `markChanged` after.
   */
  store(slot: number, values: HostBuffer, start: number): void {
    const piece = this.pieceOf(slot);
    if (piece !== undefined) {
      copyBuffer(this.elementsOf(piece).buffer, viewBuffer(values, piece.start - start, piece.length));
    }
    if (this.isWhole) copyBuffer(this.#whole.storage.buffer, values, this.#slot(slot).offset + start);
  }

  /** The flat buffer has got new values (broadcast, loaded, set by hand): take this rank's part from it. */
  adopt(): void {
    if (this.residence === 'whole') return;
    const own = viewBuffer(this.whole.storage.buffer, this.partIndex * this.plan.partSize, this.plan.partSize);
    if (isSameBits(this.#part.storage.buffer, own)) return;
    copyBuffer(this.#part.storage.buffer, own);
    this.markChanged();
  }

  /**
   * Launch the collective that makes the unit whole from all ranks' parts. Settles when the parameters are there. Where
   * the unit is whole already it updates it, in place, with residence 'whole' (after a step).
   */
  async gather(): Promise<void> {
    if (this.plan.numParts === 1 && this.residence === 'whole') return;
    if (this.isWhole) {
      await this.#group.allGatherInto(this.#whole, this.#part, { label: this.label });
      return;
    }
    const { dtype } = this.plan;
    const arriving = flatTensor(Storage.of(allocateBuffer(dtype, paddedSize(this.plan)), 'parameters'));
    try {
      await this.#group.allGatherInto(arriving, this.#part, { label: this.label });
    } finally {
      arriving.lease.release(); // counted with the parameters from here on
    }
    this.#occupy(arriving);
  }

  /** Let go of all but the part. The parameters throw when they are used, naming themselves. */
  release(): void {
    invariant(this.residence === 'part', `unit ${this.index} may be released`);
    if (!this.isWhole) return;
    this.#whole.storage.allocation.suspend();
    this.#whole.vacate(() => new InvalidArgumentError(`the flat buffer of ${this.label} is released.`));
    for (const { name, parameter } of this.members) parameter.vacate(() => released(name, this.#group.rank));
  }

  /** The unit, which is whole, stays so from now on, and is held once: the part becomes a view of it. */
  stayWhole(): void {
    if (this.residence === 'whole') return;
    const { partSize } = this.plan;
    const kept = this.#part;
    this.#part = flatTensor(this.whole.storage.view(this.partIndex * partSize, partSize));
    kept.dispose();
  }

  /** The part has got new values (a step, or loaded ones): a backward that saved the old ones is refused. */
  markChanged(): void {
    this.#part.storage.markChanged();
    this.#whole.storage.markChanged();
  }

  #occupy({ storage: { buffer } }: Tensor): void {
    this.#whole.occupy(buffer);
    this.members.forEach(({ parameter }, slot) => {
      const { offset, numElements } = this.#slot(slot);
      parameter.occupy(viewBuffer(buffer, offset, numElements));
    });
    this.#whole.storage.allocation.resume();
  }

  #slot(slot: number): { readonly offset: number; readonly numElements: number } {
    const found = this.plan.slots[slot];
    invariant(found !== undefined, `unit ${this.index} has a slot ${slot}`);
    return found;
  }
}

/** A tensor of one dimension over `storage`; it outlives a tidy() of the caller's. */
export function flatTensor(storage: Storage): Tensor {
  return keep(new Tensor({ storage, shape: [storage.length] }));
}

function released(name: string, rank: number): InvalidArgumentError {
  return new InvalidArgumentError(
    `parameter '${name}' is released on rank ${rank}: under ZeRO stage 3 it is whole only while its module runs. Use it inside the forward of the module that owns it (or of one above both users, if it is shared), or read it inside withFullParameters(module, fn).`,
    { rank },
  );
}
