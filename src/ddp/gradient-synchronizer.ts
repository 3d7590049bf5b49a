import type { DType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { ReduceOp } from '../core/reduce-op';
import type { ProcessGroup } from '../process-group/process-group';
import { checkAgreement, describeEntry } from '../comm/agreement';
import { Tensor } from '../tensor/tensor';
import { GradSyncStrategy } from './grad-sync-strategy';
import { GradientBucket } from './gradient-bucket';

/** Elements of a bucket when none are given: 100 MB of float32. */
const DEFAULT_BUCKET_SIZE = 25_000_000;

/**
 * Averages gradients that you collect yourself, for loops that do not use DistributedDataParallel.
 *
 *     const synchronizer = new GradientSynchronizer(GradSyncStrategy.Synchronous, 1_000_000);
 *     synchronizer.prepare(parameters.length);
 *     parameters.forEach((parameter, index) => synchronizer.addGradient(index, parameter.grad));
 *     await synchronizer.syncAll(group);
 *     synchronizer.gradients(); // the averages, by index
 *     synchronizer.clear();
 *
 * Synchronous reduces bucket after bucket, Overlapped has all of them in flight together, NoSync reduces nothing. The
 * bits are the same for the first two, and do not depend on the bucket size.
 */
export class GradientSynchronizer {
  readonly strategy: GradSyncStrategy;
  readonly bucketSize: number;
  #gradients: (Tensor | undefined)[] = [];

  /** @param bucketSize elements of a bucket; a larger gradient gets a bucket of its own */
  constructor(strategy: GradSyncStrategy = GradSyncStrategy.Synchronous, bucketSize: number = DEFAULT_BUCKET_SIZE) {
    if (!Object.hasOwn(GradSyncStrategy, strategy)) {
      throw new InvalidArgumentError(
        `GradientSynchronizer: expected a strategy of ${Object.keys(GradSyncStrategy).join(', ')}, got ${String(strategy)}.`,
      );
    }
    if (!Number.isSafeInteger(bucketSize) || bucketSize < 1) {
      throw new InvalidArgumentError(
        `GradientSynchronizer: expected a bucket size of 1 or more whole elements, got ${String(bucketSize)}.`,
      );
    }
    this.strategy = strategy;
    this.bucketSize = bucketSize;
  }

  /** Expect gradients of `numParameters` parameters, indices 0 to numParameters - 1; forgets those held. */
  prepare(numParameters: number): void {
    if (!Number.isSafeInteger(numParameters) || numParameters < 0) {
      throw new InvalidArgumentError(
        `GradientSynchronizer.prepare: expected 0 or more parameters, got ${String(numParameters)}.`,
      );
    }
    this.#gradients = Array.from({ length: numParameters }, () => undefined);
  }

  /**
   * Take a copy of the gradient of parameter `index`.
   * @throws InvalidArgumentError for an index that `prepare` did not announce, or that has a gradient already
   */
  addGradient(index: number, tensor: Tensor): void {
    if (!Number.isInteger(index) || index < 0 || index >= this.#gradients.length) {
      throw new InvalidArgumentError(
        `GradientSynchronizer.addGradient: expected an index from 0 to ${this.#gradients.length - 1}, got ${String(index)}. Call prepare(numParameters) with the number of parameters first.`,
      );
    }
    if (this.#gradients[index] !== undefined) {
      throw new InvalidArgumentError(
        `GradientSynchronizer.addGradient: index ${index} has a gradient already. Call clear() before the next step.`,
      );
    }
    this.#gradients[index] = Tensor.from(tensor.storage.buffer, tensor.shape);
  }

  /**
   * Average every gradient over the group, in place. A second call would average the averages: call clear() between.
   *
   * @throws InvalidArgumentError on every rank if the ranks hold gradients of different indices, sizes or dtypes; the
   * group and the gradients are left as they were
   */
  async syncAll(group: ProcessGroup): Promise<void> {
    if (this.strategy === GradSyncStrategy.NoSync) return;
    await checkAgreement(
      this.#gradients.map(describeEntry),
      group,
      'GradientSynchronizer.syncAll',
      ({ index, rank, theirs = 'not announced by prepare', reference = 'not announced by prepare' }) =>
        `the ranks hold different gradients: index ${index} is ${theirs} on rank ${rank}, and ${reference} on rank 0. Add a gradient for the same parameters on every rank (zeros where one is unused).`,
    );
    const filled = this.#fillBuckets();
    if (this.strategy === GradSyncStrategy.Synchronous) {
      for (const { bucket } of filled) await group.allReduce(Tensor.wrap(bucket.data), ReduceOp.Average);
    } else {
      const works = filled.map(({ bucket }) => group.allReduce(Tensor.wrap(bucket.data), ReduceOp.Average));
      await Promise.all(works);
    }
    for (const { bucket, members } of filled) {
      bucket.extract().forEach((average, place) => {
        this.#gradients[members[place] as number] = average;
      });
    }
  }

  /** The gradients held, by index; undefined where none was added. After `syncAll`, the averages. */
  gradients(): (Tensor | undefined)[] {
    return [...this.#gradients];
  }

  /** Forget the gradients; the number of parameters stays. */
  clear(): void {
    this.prepare(this.#gradients.length);
  }

  /** Gradients in index order, each dtype in buckets of its own. */
  #fillBuckets(): FilledBucket[] {
    const filled: FilledBucket[] = [];
    const open = new Map<DType, FilledBucket>();
    let elementsLeft = this.#gradients.reduce((total, gradient) => total + (gradient?.size ?? 0), 0);
    this.#gradients.forEach((gradient, index) => {
      if (gradient === undefined) return;
      let target = open.get(gradient.dtype);
      if (target === undefined || target.bucket.size + gradient.size > target.bucket.capacity) {
        const capacity = Math.max(gradient.size, Math.min(this.bucketSize, elementsLeft));
        target = { bucket: new GradientBucket(capacity), members: [] };
        open.set(gradient.dtype, target);
        filled.push(target);
      }
      target.bucket.add(gradient);
      target.members.push(index);
      elementsLeft -= gradient.size;
    });
    return filled;
  }
}

interface FilledBucket {
  readonly bucket: GradientBucket;
  /** Index of each tensor in the bucket, in order. */
  readonly members: number[];
}
