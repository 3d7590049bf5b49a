import type { ParameterState } from '../optim/parameter-state';
import type { UpdateRule } from '../optim/update-rule';
import type { Tensor } from '../tensor/tensor';
import type { FlatUnit } from './flat-unit';
import type { Piece } from './shard-plan';
import type { BuffersByName, PieceUpdate, ShardUpdater } from './shard-updater';
import type { UnitGradients } from './unit-gradients';

/** One update of one parameter of a unit. */
export interface ParameterUpdate<Settings> {
  readonly gradients: UnitGradients;
  readonly slot: number;
  readonly settings: Settings;
}

/** What the optimizer keeps about the pieces that this rank owns, and how often each parameter was updated. */
export class ShardedState {
  readonly #shards: ShardUpdater;
  /** The same on every rank, whoever owns the elements. */
  readonly #steps = new Map<Tensor, number>();

  constructor(shards: ShardUpdater) {
    this.#shards = shards;
  }

  /** Of this rank, in device memory. */
  get deviceBytes(): number {
    return this.#shards.deviceBytes;
  }

  /** Updates of a parameter so far. */
  stepsOf(parameter: Tensor): number {
    return this.#steps.get(parameter) ?? 0;
  }

  /** Update this rank's pieces of parameters, from `factor` times their averages, and count it; see ShardUpdater.update. */
  async update<Settings>(
    rule: UpdateRule<Settings>,
    updates: readonly ParameterUpdate<Settings>[],
    factor: number,
  ): Promise<void> {
    const ofPieces = updates.flatMap(({ gradients, slot, settings }): PieceUpdate<Settings>[] => {
      const { unit } = gradients;
      const piece = unit.pieceOf(slot);
      const gradient = piece === undefined ? undefined : gradients.averageOf(piece);
      if (piece === undefined || gradient === undefined) return [];
      const step = this.stepsOf(parameterAt(unit, slot)) + 1;
      return [{ piece, parameter: unit.elementsOf(piece), gradient, settings, step }];
    });
    await this.#shards.update(rule, ofPieces, factor);
    for (const { gradients, slot } of updates) {
      const parameter = parameterAt(gradients.unit, slot);
      this.#steps.set(parameter, this.stepsOf(parameter) + 1);
    }
  }

  /** What is kept of each piece of a unit, by name, on the host; see ShardUpdater.read. */
  async read(unit: FlatUnit): Promise<ReadonlyMap<Piece, BuffersByName>> {
    const kept = new Map<Piece, BuffersByName>();
    for (const piece of unit.pieces) kept.set(piece, await this.#shards.read(piece, unit.elementsOf(piece)));
    return kept;
  }

  /** The first master copy of a piece of a 16-bit parameter, [Note: first masters]. */
  startMaster(piece: Piece, master: Tensor): void {
    this.#shards.startMaster(piece, master);
  }

  /** Take over a whole state; see ShardUpdater.replace. */
  replace(steps: ReadonlyMap<Tensor, number>, kept: ReadonlyMap<Piece, ParameterState>): void {
    this.#shards.replace(kept);
    this.#steps.clear();
    for (const [parameter, step] of steps) this.#steps.set(parameter, step);
  }

  /** Let go of device memory. */
  bringDown(): Promise<void> {
    return this.#shards.bringDown();
  }
}

function parameterAt(unit: FlatUnit, slot: number): Tensor {
  return (unit.members[slot] as { readonly parameter: Tensor }).parameter;
}
