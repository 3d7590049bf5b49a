/** Which samples of a dataset each rank sees in an epoch. */
import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';

export interface DistributedSamplerOptions {
  /** Number of ranks that share the dataset. */
  readonly worldSize: number;
  /** This rank, 0..worldSize-1. */
  readonly rank: number;
  /** A new order every epoch (see `setEpoch`); default true. */
  readonly shuffle?: boolean | undefined;
  /** Seed of the order; the same on every rank. Default 0. */
  readonly seed?: number | undefined;
  /** Leave out the samples that do not divide evenly, instead of repeating some; default false. */
  readonly dropLast?: boolean | undefined;
}

/** Where a sampler is, for an exact resume; JSON-safe. */
export interface DistributedSamplerState {
  readonly epoch: number;
  /** Indices of this rank's list that were handed out in that epoch. */
  readonly position: number;
}

const optionsSchema = z.strictObject({
  worldSize: z.int().min(1),
  rank: z.int().min(0),
  shuffle: z.boolean().default(true),
  seed: z.int().min(0).default(0),
  dropLast: z.boolean().default(false),
});

const stateSchema = z.strictObject({ epoch: z.int().min(0), position: z.int().min(0) });

/** Words of the generator set aside for each epoch: more than a permutation draws, and room for 2^21 epochs. */
const WORDS_PER_EPOCH = 2 ** 32;
const MAX_EPOCHS = 2 ** 21;

/**
 * Deals the indices 0..length-1 out to the ranks like cards: rank r gets entries r, r + worldSize, ... of one list that
 * is the same on every rank. Iterating gives this rank's indices of the current epoch.
 *
 * Where `length` does not divide by `worldSize`, the list is padded by wrapping to its start, so that every rank takes
 * the same number of steps; `numPadding` says how many of this rank's last indices are such repeats (leave them out of
 * metrics). With `dropLast` the list is cut instead. Call `setEpoch` before every epoch: without it the order stays.
 * After torch.utils.data.DistributedSampler; the random order is Lockstep's own.
 */
export class DistributedSampler implements Iterable<number> {
  readonly worldSize: number;
  readonly rank: number;
  readonly shuffle: boolean;
  readonly seed: number;
  readonly dropLast: boolean;
  /** Samples of the whole dataset. */
  readonly datasetLength: number;
  /** Indices that this rank gets in an epoch; the same on every rank. */
  readonly length: number;
  #epoch = 0;
  #position = 0;
  /** True after `loadStateDict`: the next iteration starts at `#position`, not at the front. */
  #isResuming = false;

  /**
   * @param length samples of the dataset
   * @throws InvalidArgumentError for a length that is no count, a rank outside the world or an unknown option
   */
  constructor(length: number, options: DistributedSamplerOptions) {
    if (!Number.isSafeInteger(length) || length < 0 || length > WORDS_PER_EPOCH) {
      throw new InvalidArgumentError(
        `new DistributedSampler: expected the number of samples, 0 to 2^32, got ${describe(length)}. Pass dataset.length.`,
      );
    }
    const parsed = parseOptions(optionsSchema, options, 'new DistributedSampler');
    if (parsed.rank >= parsed.worldSize) {
      throw new InvalidArgumentError(
        `new DistributedSampler: expected a rank from 0 to ${parsed.worldSize - 1} (worldSize is ${parsed.worldSize}), ` +
          `got ${parsed.rank}.`,
      );
    }
    this.worldSize = parsed.worldSize;
    this.rank = parsed.rank;
    this.shuffle = parsed.shuffle;
    this.seed = parsed.seed;
    this.dropLast = parsed.dropLast;
    this.datasetLength = length;
    const share = length / parsed.worldSize;
    this.length = parsed.dropLast ? Math.floor(share) : Math.ceil(share);
  }

  /** The epoch whose order is handed out. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Indices of all ranks together: `length` times `worldSize`. */
  get totalSize(): number {
    return this.length * this.worldSize;
  }

  /** How many of this rank's indices, the last ones, repeat a sample that was dealt already: 0 or 1. */
  get numPadding(): number {
    const lastEntry = (this.length - 1) * this.worldSize + this.rank;
    return this.length > 0 && lastEntry >= this.datasetLength ? 1 : 0;
  }

  /** Choose the order of epoch `epoch`, 0, 1, 2, ...; the same number on every rank. */
  setEpoch(epoch: number): void {
    if (!Number.isInteger(epoch) || epoch < 0 || epoch >= MAX_EPOCHS) {
      throw new InvalidArgumentError(`setEpoch: expected a whole number from 0 to 2^21 - 1, got ${describe(epoch)}.`);
    }
    if (epoch === this.#epoch) return; // a loop that resumes within an epoch sets that epoch again
    this.#epoch = epoch;
    this.#position = 0;
    this.#isResuming = false;
  }

  /** This rank's indices of the current epoch, in order, in a new array. */
  indices(): number[] {
    const order = this.shuffle ? this.#shuffledOrder() : undefined;
    return Array.from({ length: this.length }, (_unused, i) => {
      const entry = (i * this.worldSize + this.rank) % this.datasetLength;
      return order === undefined ? entry : (order[entry] as number);
    });
  }

  *[Symbol.iterator](): IterableIterator<number> {
    if (!this.#isResuming) this.#position = 0;
    this.#isResuming = false;
    for (const index of this.indices().slice(this.#position)) {
      this.#position++;
      yield index;
    }
  }

  /** Epoch, and how many indices of it the latest iteration has handed out. */
  stateDict(): DistributedSamplerState {
    return { epoch: this.#epoch, position: this.#position };
  }

  /** Go to a saved state: the next iteration hands out what was left of that epoch, later ones start at the front. */
  loadStateDict(state: DistributedSamplerState): void {
    const { epoch, position } = parseOptions(stateSchema, state, 'DistributedSampler.loadStateDict');
    if (position > this.length) {
      throw new InvalidArgumentError(
        `DistributedSampler.loadStateDict: the state is at index ${position}, but this rank has ${this.length} an epoch. ` +
          'It was saved with another dataset length, worldSize or dropLast.',
      );
    }
    this.setEpoch(epoch);
    this.#position = position;
    this.#isResuming = true;
  }

  #shuffledOrder(): number[] {
    const generator = new Generator(this.seed);
    generator.setState({ seed: this.seed, position: this.#epoch * WORDS_PER_EPOCH });
    return generator.permutation(this.datasetLength);
  }
}

function describe(value: unknown): string {
  return typeof value === 'object' && value !== null ? 'an object' : String(value);
}
