/**
 * Which rank owns which elements. Pure arithmetic, the same on every rank.
 *
 * [Note: parts and pieces] A unit is a flat buffer that holds some parameters, one after the other, padded to `numParts`
 * equal parts; rank r owns part r. A part begins and ends anywhere, in the middle of a parameter too, so every transfer is
 * balanced, a parameter with fewer elements than ranks is no special case, and the plan never changes. What a part holds
 * of one parameter is a piece.
 */
import type { DType } from '../core/dtype';
import { invariant } from '../core/invariant';
import type { BucketSlot, PlannedBucket } from '../strategy/bucket-plan';

export interface UnitPlan {
  readonly dtype: DType;
  /** Where each parameter lies. */
  readonly slots: readonly BucketSlot[];
  /** Elements of the parameters; what follows up to numParts * partSize is padding. */
  readonly numElements: number;
  readonly numParts: number;
  /** Elements of each part. */
  readonly partSize: number;
}

/** A run of elements of one parameter that one rank owns. */
export interface Piece {
  /** Index of the slot in `UnitPlan.slots`. */
  readonly slot: number;
  /** First element, counted in the parameter. */
  readonly start: number;
  readonly length: number;
  /** First element, counted in the part. */
  readonly offset: number;
}

/** Cut a bucket into `numParts` equal parts. */
export function planUnit({ dtype, slots, numElements }: PlannedBucket, numParts: number): UnitPlan {
  return { dtype, slots, numElements, numParts, partSize: Math.ceil(numElements / numParts) };
}

/** Elements of the whole buffer, padding included. */
export function paddedSize({ numParts, partSize }: UnitPlan): number {
  return numParts * partSize;
}

/** What part `part` holds, in ascending order, at most one piece of each slot; nothing of empty ones, nothing for padding. */
export function piecesOf(plan: UnitPlan, part: number): Piece[] {
  invariant(part >= 0 && part < plan.numParts, `part ${part} of a unit exists`);
  const partStart = part * plan.partSize;
  const partEnd = partStart + plan.partSize;
  return plan.slots.flatMap(({ offset, numElements }, slot) => {
    const from = Math.max(offset, partStart);
    const to = Math.min(offset + numElements, partEnd);
    return from < to ? [{ slot, start: from - offset, length: to - from, offset: from - partStart }] : [];
  });
}
