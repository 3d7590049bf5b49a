import { planBuckets, reverseOrder, type BucketCapacity, type PlannedBucket } from '../strategy/bucket-plan';
import { ReducerBucket, type NamedParameter } from './reducer-bucket';

/**
 * All buckets of a reducer: first by reverse registration, then once more by the order in which rank 0 saw gradients
 * become ready, the same on every rank. See [Note: bucket order].
 */
export class BucketSet {
  readonly #parameters: readonly NamedParameter[];
  readonly #capacity: BucketCapacity;
  readonly #isView: boolean;
  #plan: readonly PlannedBucket[] = [];
  #buckets: readonly ReducerBucket[] = [];
  /** The bucket of each item. */
  readonly #bucketOf: ReducerBucket[] = [];

  constructor(parameters: readonly NamedParameter[], capacity: BucketCapacity, isView: boolean) {
    this.#parameters = parameters;
    this.#capacity = capacity;
    this.#isView = isView;
    this.#make(this.#planFor(reverseOrder(parameters.length)));
  }

  /** In launch order. */
  get buckets(): readonly ReducerBucket[] {
    return this.#buckets;
  }

  bucketOf(item: number): ReducerBucket {
    return this.#bucketOf[item] as ReducerBucket;
  }

  /** Lay the buckets out anew for this order of items. Gradients that live in the old ones move with their values. */
  rebuild(order: readonly number[]): void {
    const plan = this.#planFor(order);
    if (JSON.stringify(plan) === JSON.stringify(this.#plan)) return;
    const old = this.#buckets;
    const release = (): void => {
      for (const bucket of old) bucket.release();
    };
    const hasGradients = this.#parameters.some(({ parameter }) => parameter.grad !== undefined);
    if (!hasGradients) release(); // so that old and new are never held together
    this.#make(plan);
    if (hasGradients) release();
  }

  release(): void {
    for (const bucket of this.#buckets) bucket.release();
  }

  #planFor(order: readonly number[]): PlannedBucket[] {
    const items = this.#parameters.map(({ parameter }) => ({ numElements: parameter.size, dtype: parameter.dtype }));
    return planBuckets(items, order, this.#capacity);
  }

  #make(plan: readonly PlannedBucket[]): void {
    this.#plan = plan;
    this.#buckets = plan.map((planned, index) => new ReducerBucket(index, planned, this.#parameters, this.#isView));
    plan.forEach(({ slots }, index) => {
      for (const { item } of slots) this.#bucketOf[item] = this.#buckets[index] as ReducerBucket;
    });
    for (const bucket of this.#buckets) bucket.adoptGradients();
  }
}
