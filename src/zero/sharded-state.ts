import { MASTER } from '../optim/master-copy';
import { emptyParameterState, type ParameterState } from '../optim/parameter-state';
import { updateSlice } from '../optim/slice-update';
import type { UpdateRule } from '../optim/update-rule';
import { kernels } from '../tensor/kernels/kernels';
import { floatsFor, floatsOf } from '../tensor/operators/floats';
import { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import type { FlatUnit } from './flat-unit';
import type { Piece } from './shard-plan';
import type { UnitGradients } from './unit-gradients';

/** What the optimizer keeps about the pieces that this rank owns, and how often each parameter was updated. */
export class ShardedState {
  readonly #kept = new Map<Piece, ParameterState>();
  /** The same on every rank, whoever owns the elements. */
  readonly #steps = new Map<Tensor, number>();

  /** Updates of a parameter so far. */
  stepsOf(parameter: Tensor): number {
    return this.#steps.get(parameter) ?? 0;
  }

  keptOf(piece: Piece): ParameterState | undefined {
    return this.#kept.get(piece);
  }

  /** Count one more update of a parameter, whose pieces are updated next. */
  countStep(parameter: Tensor): void {
    this.#steps.set(parameter, this.stepsOf(parameter) + 1);
  }

  /** Update this rank's piece of one parameter of a unit, after `countStep`, from `factor` times its averages. */
  update<Settings>(
    rule: UpdateRule<Settings>,
    gradients: UnitGradients,
    slot: number,
    settings: Settings,
    factor: number,
  ): void {
    const { unit } = gradients;
    const piece = unit.pieceOf(slot);
    const gradient = piece === undefined ? undefined : gradients.averageOf(piece);
    if (piece === undefined || gradient === undefined) return;
    const kept = this.#make(piece);
    kept.step = this.stepsOf(parameterAt(unit, slot)) - 1;
    updateSlice(rule, { parameter: unit.elementsOf(piece), gradient: scaled(gradient, factor), kept }, settings);
  }

  /** The first master copy of a piece of a 16-bit parameter, [Note: first masters]. */
  startMaster(piece: Piece, master: Tensor): void {
    this.#make(piece).buffers[MASTER] = master;
  }

  /**
   * Take over a whole state. Of a piece that is not in it only the master stays, which follows the parameter wherever that
   * was changed.
   */
  replace(steps: ReadonlyMap<Tensor, number>, kept: ReadonlyMap<Piece, ParameterState>): void {
    for (const [piece, { buffers }] of [...this.#kept]) {
      const { [MASTER]: master, ...others } = buffers;
      for (const buffer of Object.values(others)) buffer.dispose();
      this.#kept.delete(piece);
      if (master === undefined) continue;
      if (kept.has(piece)) master.dispose();
      else this.startMaster(piece, master);
    }
    this.#steps.clear();
    for (const [parameter, step] of steps) this.#steps.set(parameter, step);
    for (const [piece, state] of kept) this.#kept.set(piece, state);
  }

  #make(piece: Piece): ParameterState {
    let kept = this.#kept.get(piece);
    if (kept === undefined) this.#kept.set(piece, (kept = emptyParameterState()));
    return kept;
  }
}

/** The product in memory for the moment, in float32 at least; the storage itself for a factor of 1. */
function scaled(gradient: Storage, factor: number): Storage {
  if (factor === 1) return gradient;
  const product = floatsFor(gradient.dtype, gradient.length);
  kernels.scale(product, floatsOf(gradient), factor);
  return Storage.of(product);
}

function parameterAt(unit: FlatUnit, slot: number): Tensor {
  return (unit.members[slot] as { readonly parameter: Tensor }).parameter;
}
