import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { defaultGenerator } from '../core/random';
import { noGrad } from '../tensor/gradient-mode';
import { collate as collateSamples, type Collated } from './collate';
import type { Dataset } from './dataset';

export interface DataLoaderOptions<T, B> {
  /** Samples a batch; default 1. */
  readonly batchSize?: number | undefined;
  /** Which samples, in which order: a DistributedSampler, or any iterable of indices. Default: all, in order. */
  readonly sampler?: Iterable<number> | undefined;
  /** A new random order at every iteration; not beside a sampler. Default false. */
  readonly shuffle?: boolean | undefined;
  /** Where `shuffle` draws from; default: the generator of this context. */
  readonly generator?: Generator | undefined;
  /** Leave out the last batch if it is not full; default false. */
  readonly dropLast?: boolean | undefined;
  /** Joins samples to a batch; default: tensors are stacked, in arrays and objects too (see `collate`). */
  readonly collate?: ((samples: T[]) => B | Promise<B>) | undefined;
}

const schema = z.strictObject({
  batchSize: z.int().min(1).default(1),
  sampler: z.custom<Iterable<number>>(isIterable, 'expected an iterable of indices').optional(),
  shuffle: z.boolean().default(false),
  generator: z.instanceof(Generator).optional(),
  dropLast: z.boolean().default(false),
  collate: z.custom<unknown>((value) => typeof value === 'function', 'expected a function').optional(),
});

/**
 * Batches of a dataset, made as they are asked for:
 *
 *     for await (const [images, labels] of new DataLoader(dataset, { batchSize: 32, sampler })) { ... }
 *
 * `length` is the number of batches. Each iteration asks the sampler anew, so set its epoch before. Batches are made
 * outside of autograd.
 */
export class DataLoader<T, B = Collated<T>> implements AsyncIterable<B> {
  readonly batchSize: number;
  readonly dropLast: boolean;
  readonly #dataset: Dataset<T>;
  readonly #sampler: Iterable<number> | undefined;
  readonly #generator: Generator | undefined;
  readonly #shuffle: boolean;
  readonly #collate: ((samples: T[]) => B | Promise<B>) | undefined;

  /**
   * @param dataset an array of samples, a TensorDataset, or anything with `length` and `get`
   * @throws InvalidArgumentError for options that do not parse, or `shuffle` beside a sampler
   */
  constructor(dataset: Dataset<T> | readonly T[], options?: DataLoaderOptions<T, B>) {
    const parsed = parseOptions(schema, options, 'new DataLoader');
    if (parsed.shuffle && parsed.sampler !== undefined) {
      throw new InvalidArgumentError(
        'new DataLoader: shuffle and sampler are given, but the sampler decides the order. Pass { shuffle: true } to the sampler.',
      );
    }
    this.#dataset = asDataset(dataset);
    this.batchSize = parsed.batchSize;
    this.dropLast = parsed.dropLast;
    this.#sampler = parsed.sampler;
    this.#generator = parsed.generator;
    this.#shuffle = parsed.shuffle;
    this.#collate = options?.collate;
  }

  /**
   * Number of batches of one iteration.
   * @throws InvalidArgumentError if the sampler does not say its length
   */
  get length(): number {
    const numSamples = this.#sampler === undefined ? this.#dataset.length : lengthOf(this.#sampler);
    const batches = numSamples / this.batchSize;
    return this.dropLast ? Math.floor(batches) : Math.ceil(batches);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<B, void, undefined> {
    let indices: number[] = [];
    for (const index of this.#order()) {
      indices.push(this.#checkIndex(index));
      if (indices.length < this.batchSize) continue;
      yield await this.#makeBatch(indices);
      indices = [];
    }
    if (indices.length > 0 && !this.dropLast) yield await this.#makeBatch(indices);
  }

  #order(): Iterable<number> {
    if (this.#sampler !== undefined) return this.#sampler;
    const { length } = this.#dataset;
    if (this.#shuffle) return (this.#generator ?? defaultGenerator()).permutation(length);
    return Array.from({ length }, (_unused, index) => index);
  }

  #checkIndex(index: number): number {
    if (Number.isInteger(index) && index >= 0 && index < this.#dataset.length) return index;
    throw new InvalidArgumentError(
      `DataLoader: the sampler gave index ${String(index)}, but the dataset has ${this.#dataset.length} samples. ` +
        'Make the sampler for dataset.length.',
    );
  }

  async #makeBatch(indices: readonly number[]): Promise<B> {
    return noGrad(async () => {
      const dataset = this.#dataset;
      if (this.#collate === undefined && dataset.getBatch !== undefined) return (await dataset.getBatch(indices)) as B;
      const samples: T[] = [];
      for (const index of indices) samples.push(await dataset.get(index));
      return this.#collate === undefined ? (collateSamples(samples) as B) : this.#collate(samples);
    });
  }
}

function asDataset<T>(dataset: Dataset<T> | readonly T[]): Dataset<T> {
  if (Array.isArray(dataset)) {
    const samples = dataset as readonly T[];
    return { length: samples.length, get: (index) => samples[index] as T };
  }
  const { length, get } = (dataset ?? {}) as Partial<Dataset<T>>;
  if (typeof length === 'number' && typeof get === 'function') return dataset as Dataset<T>;
  throw new InvalidArgumentError('new DataLoader: expected an array of samples, or an object with length and get(index).');
}

function isIterable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && Symbol.iterator in value;
}

function lengthOf(sampler: Iterable<number>): number {
  const { length } = sampler as { readonly length?: unknown };
  if (typeof length === 'number') return length;
  throw new InvalidArgumentError('DataLoader.length: the sampler has no length, so the number of batches is not known.');
}
