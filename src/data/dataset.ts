import { InvalidArgumentError } from '../core/errors';
import { indexSelect } from '../tensor/functional';
import { noGrad } from '../tensor/gradient-mode';
import { formatShape } from '../tensor/shape';
import { Tensor } from '../tensor/tensor';

/** Samples by number. An array of samples will do instead. */
export interface Dataset<T> {
  /** Number of samples. */
  readonly length: number;
  /** Sample `index`, 0..length-1; may be async. */
  get(index: number): T | Promise<T>;
  /**
   * The samples at `indices` as one batch, where that is faster than one by one. Used unless the loader has a `collate` of
   * its own.
   */
  getBatch?(indices: readonly number[]): unknown;
}

/**
 * Samples that are the slices, along the first dimension, of one or more tensors: images and labels, say. Sample i is
 * `[tensors[0][i], tensors[1][i], ...]`, and a batch of a DataLoader `[images, labels]`.
 */
export class TensorDataset<T extends readonly Tensor[] = readonly Tensor[]> implements Dataset<Tensors<T>> {
  readonly tensors: readonly [...T];
  readonly length: number;

  /** @throws InvalidArgumentError for no tensors, or tensors of different lengths */
  constructor(tensors: readonly [...T]) {
    this.tensors = tensors;
    this.length = commonLength(tensors);
  }

  get(index: number): Tensors<T> {
    return this.tensors.map((tensor) => this.#rows(tensor, [index]).squeeze(0)) as Tensors<T>;
  }

  getBatch(indices: readonly number[]): Tensors<T> {
    return this.tensors.map((tensor) => this.#rows(tensor, indices)) as Tensors<T>;
  }

  #rows(tensor: Tensor, indices: readonly number[]): Tensor {
    return noGrad(() => indexSelect(tensor, 0, Tensor.wrap(Int32Array.from(indices))));
  }
}

/** @throws InvalidArgumentError unless `tensors` is a list of tensors with equal first sizes */
function commonLength(tensors: unknown): number {
  const list: readonly unknown[] = Array.isArray(tensors) ? tensors : [];
  const lengths = list.map((item) => (item instanceof Tensor ? item.shape[0] : undefined));
  const [first] = lengths;
  if (first !== undefined && lengths.every((length) => length === first)) return first;
  const got = list.map((item) => (item instanceof Tensor ? formatShape(item.shape) : typeof item)).join(', ');
  throw new InvalidArgumentError(
    `new TensorDataset: expected a list of tensors with one sample a row, all of one length, got ${got || 'none'}.`,
  );
}

/** As many plain tensors as `T` has elements. */
export type Tensors<T extends readonly unknown[]> = { -readonly [K in keyof T]: Tensor };
