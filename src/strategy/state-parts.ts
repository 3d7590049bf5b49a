/**
 * Saved state in parts: what checkpoints need to know of models and optimizers, and these of checkpoints.
 *
 * [Note: parts of a tensor] A part is a run of elements of a named tensor, in row-major order of its global shape. What a
 * rank happens to hold of a tensor, as a replica, a ZeRO shard or a piece of one, is always a list of parts, and no flat
 * layout is ever written down: whoever loads asks for the parts that it needs.
 */
import type { DType, HostBuffer } from '../core/dtype';
import type { Shape } from '../tensor/shape';

/** Anything that JSON can hold. */
export type JsonValue = null | boolean | number | string | readonly JsonValue[] | { readonly [key: string]: JsonValue };

export interface TensorForm {
  /** Of the whole tensor. */
  readonly shape: Shape;
  readonly dtype: DType;
}

/** A run of elements of a named tensor. */
export interface TensorPart extends TensorForm {
  /** Unique in the state: `blocks.0.fc1.weight` of a model, `blocks.0.fc1.weight/expAvg` of an optimizer. */
  readonly name: string;
  /** First element, counted in row-major order in the whole tensor. */
  readonly start: number;
  /** The elements themselves, live: copy them before training goes on. */
  readonly buffer: HostBuffer;
}

export interface StateParts {
  /** What this rank is to write. All ranks' parts together hold every element once. */
  readonly tensors: readonly TensorPart[];
  /** What every rank holds whole, of which each writes a share: it must be the same on all of them. */
  readonly replicas?: readonly TensorPart[] | undefined;
  /** Small values that are the same on every rank; an optimizer's are those of optimizer-values.ts. */
  readonly values: { readonly [key: string]: JsonValue };
}

/** One saved state, as it is read back. */
export interface StateReader {
  readonly values: { readonly [key: string]: JsonValue };
  /** Names of all tensors. */
  readonly names: readonly string[];
  /** The form of a tensor; undefined if the state has none of this name. */
  formOf(name: string): TensorForm | undefined;
  /**
   * Elements `start` to `start + length` of a tensor, in memory of their own, converted from one floating point dtype to
   * another where `dtype` is not the saved one.
   * @throws InvalidArgumentError if they are not there, do not convert, or do not match their checksum
   */
  read(name: string, start: number, length: number, dtype: DType): Promise<HostBuffer>;
}

/** Implemented by what holds its state in parts. All ranks of its group call these together. */
export interface PartedState {
  /** The parts that this rank writes. */
  stateParts(): Promise<StateParts>;
  /**
   * Read and check everything, and change nothing. The function returned makes the change, and cannot fail.
   * @throws InvalidArgumentError if the state does not fit
   */
  prepareStateParts(reader: StateReader): Promise<() => void>;
}

/** The property under which a module or an optimizer gives its PartedState. */
export const partedState = Symbol.for('lockstep.partedState');

/** The state in parts of `holder`; undefined if it is a plain module or optimizer, which every rank holds whole. */
export function partedStateOf(holder: object): PartedState | undefined {
  return (holder as { readonly [partedState]?: PartedState })[partedState];
}
