/**
 * A unit with rank 0's values.
 *
 * [Note: first masters] Where float32 parameters are to be stored in 16 bits, rank 0's values come in float32, and each rank
 * keeps its part of them as the first masters ([Note: master copies]): nothing is lost but in what is computed with.
 */
import { needsMaster } from '../optim/master-copy';
import type { ProcessGroup } from '../process-group/process-group';
import { noGrad } from '../tensor/gradient-mode';
import { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import { flatTensor, FlatUnit } from './flat-unit';
import { paddedSize, type Piece } from './shard-plan';
import type { PlannedUnit } from './unit-plan';

export interface StartedUnit {
  readonly unit: FlatUnit;
  /** By piece of this rank; empty where parameters are stored as they were. */
  readonly masters: ReadonlyMap<Piece, Tensor>;
}

/** Move the parameters into a unit, with rank 0's values. A collective. */
export async function startUnit(index: number, planned: PlannedUnit, group: ProcessGroup): Promise<StartedUnit> {
  const originals = isRounded(planned) ? await shareOriginals(planned, group) : undefined;
  const unit = new FlatUnit(index, planned.plan, planned.members, planned.residence, group);
  if (originals === undefined) await shareFromFirst(unit.whole, group, unit.label);
  unit.adopt();
  const masters = new Map<Piece, Tensor>();
  if (originals !== undefined) {
    const ownStart = unit.partIndex * unit.plan.partSize;
    for (const piece of unit.pieces) {
      const elements = originals.storage.view(ownStart + piece.offset, piece.length);
      masters.set(piece, flatTensor(elements.clone('optimizer')));
    }
    originals.dispose();
  }
  if (unit.residence === 'part') unit.release();
  return { unit, masters };
}

function isRounded({ plan, members }: PlannedUnit): boolean {
  return needsMaster(plan.dtype) && members.some(({ parameter }) => parameter.dtype === 'float32');
}

/** Rank 0's values in float32, in which the parameters lie for the moment; in the order of the unit. */
async function shareOriginals({ plan, members }: PlannedUnit, group: ProcessGroup): Promise<Tensor> {
  const originals = flatTensor(Storage.allocate('float32', paddedSize(plan), 'parameters'));
  members.forEach(({ parameter }, slot) => {
    const { offset, numElements } = plan.slots[slot] as { readonly offset: number; readonly numElements: number };
    parameter.moveInto(originals.storage.view(offset, numElements), 'zeroWrap');
  });
  await shareFromFirst(originals, group, `parameters ${members.map(({ name }) => name).join(', ')}`);
  return originals;
}

function shareFromFirst(tensor: Tensor, group: ProcessGroup, label: string): Promise<void> {
  return noGrad(async () => {
    await group.broadcast(tensor, 0, { label });
  });
}
