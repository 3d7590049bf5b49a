/**
 * Who keeps the optimizer's state of this rank's pieces, and steps them: HostShards, DeviceShards.
 *
 * [Note: truth of a parameter] Wherever a step is computed, the elements in host memory are what a program reads and writes:
 * each step starts from what is there, and what it has computed is there when it settles.
 */
import type { HostBuffer } from '../core/dtype';
import type { ParameterState } from '../optim/parameter-state';
import type { UpdateRule } from '../optim/update-rule';
import type { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import type { Piece } from './shard-plan';

export type BuffersByName = Readonly<Record<string, HostBuffer>>;

/** One update of one piece. */
export interface PieceUpdate<Settings> {
  readonly piece: Piece;
  /** The piece's elements of the parameter, in host memory; changed in place. */
  readonly parameter: Storage;
  /** As long, of any floating point dtype; only read. */
  readonly gradient: Storage;
  readonly settings: Settings;
  /** The number of this update of the parameter, from 1. */
  readonly step: number;
}

export interface ShardUpdater {
  /** In device memory, of what is kept there. */
  readonly deviceBytes: number;

  /**
   * Update pieces by the rule, from `factor` times their gradients.
   * @throws UnsupportedError, with nothing changed, for what cannot be updated here
   * @throws NativeError of a device; if there is no memory left on it, nothing is changed
   */
  update<Settings>(
    rule: UpdateRule<Settings>,
    updates: readonly PieceUpdate<Settings>[],
    factor: number,
  ): Promise<void>;

  /**
   * What is kept of a piece, by name; nothing before its first update, but for first masters. A master is up to date with
   * `parameter`. It may be live: copy it before the next step.
   */
  read(piece: Piece, parameter: Storage): Promise<BuffersByName>;

  /** The first master copy of a piece of a 16-bit parameter, [Note: first masters]. */
  startMaster(piece: Piece, master: Tensor): void;

  /**
   * Take over a whole state. Of a piece that is not in it only the master stays, which follows the parameter wherever that
   * was changed.
   */
  replace(kept: ReadonlyMap<Piece, ParameterState>): void;

  /** Let go of device memory: everything is in host memory afterwards. */
  bringDown(): Promise<void>;
}
