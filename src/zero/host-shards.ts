import { followParameter, MASTER } from '../optim/master-copy';
import { emptyParameterState, type ParameterState } from '../optim/parameter-state';
import { updateSlice } from '../optim/slice-update';
import type { UpdateRule } from '../optim/update-rule';
import { kernels } from '../tensor/kernels/kernels';
import { floatsFor, floatsOf } from '../tensor/operators/floats';
import { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import type { Piece } from './shard-plan';
import type { BuffersByName, PieceUpdate, ShardUpdater } from './shard-updater';

/** State in host memory, stepped by the optimizers' own loops. */
export class HostShards implements ShardUpdater {
  readonly deviceBytes = 0;
  readonly #kept = new Map<Piece, ParameterState>();

  async update<Settings>(
    rule: UpdateRule<Settings>,
    updates: readonly PieceUpdate<Settings>[],
    factor: number,
  ): Promise<void> {
    for (const { piece, parameter, gradient, settings, step } of updates) {
      const kept = this.keptOf(piece);
      kept.step = step - 1;
      updateSlice(rule, { parameter, gradient: scaled(gradient, factor), kept }, settings);
    }
  }

  async read(piece: Piece, parameter: Storage): Promise<BuffersByName> {
    const kept = this.#kept.get(piece);
    if (kept === undefined) return {};
    followParameter(kept, parameter);
    return Object.fromEntries(Object.entries(kept.buffers).map(([name, { storage }]) => [name, storage.buffer]));
  }

  startMaster(piece: Piece, master: Tensor): void {
    this.keptOf(piece).buffers[MASTER] = master;
  }

  replace(kept: ReadonlyMap<Piece, ParameterState>): void {
    for (const [piece, { buffers }] of [...this.#kept]) {
      const { [MASTER]: master } = buffers;
      if (master !== undefined && !kept.has(piece)) delete buffers[MASTER];
      this.drop(piece);
      if (master !== undefined && !kept.has(piece)) this.startMaster(piece, master);
    }
    for (const [piece, state] of kept) this.#kept.set(piece, state);
  }

  async bringDown(): Promise<void> {
    // it is here
  }

  /** What is kept of a piece; made, with nothing in it, at first use. */
  keptOf(piece: Piece): ParameterState {
    let kept = this.#kept.get(piece);
    if (kept === undefined) this.#kept.set(piece, (kept = emptyParameterState()));
    return kept;
  }

  /** Keep nothing of a piece. */
  drop(piece: Piece): void {
    for (const buffer of Object.values(this.#kept.get(piece)?.buffers ?? {})) buffer.dispose();
    this.#kept.delete(piece);
  }
}

/** The product in memory for the moment, in float32 at least; the storage itself for a factor of 1. */
function scaled(gradient: Storage, factor: number): Storage {
  if (factor === 1) return gradient;
  const product = floatsFor(gradient.dtype, gradient.length);
  kernels.scale(product, floatsOf(gradient), factor);
  return Storage.of(product);
}
