/**
 * Which gradients share a flat buffer, and where in it each lies. Pure arithmetic, the same on every rank.
 *
 * [Note: bucket order] Items are taken in the given order (the reverse of registration at first, later the order in
 * which gradients were seen to become ready). Each dtype fills a bucket of its own; a bucket is closed once it holds
 * its capacity or more, and an item is never cut. Buckets are numbered by when their last item comes, so that
 * launching them in number order never waits for a later gradient longer than it must.
 */
import { byteSize, type DType } from '../core/dtype';
import { invariant } from '../core/invariant';

/** What is to be placed: one parameter's gradient. */
export interface BucketItem {
  readonly numElements: number;
  readonly dtype: DType;
}

/** Where one item lies in its bucket. */
export interface BucketSlot {
  /** Index in the list of items. */
  readonly item: number;
  /** First element in the bucket. */
  readonly offset: number;
  readonly numElements: number;
}

export interface PlannedBucket {
  readonly dtype: DType;
  readonly numElements: number;
  /** In the order in which the items are taken. */
  readonly slots: readonly BucketSlot[];
}

export interface BucketCapacity {
  /** Bytes at which a bucket is closed. */
  readonly bytes: number;
  /** The same for the first bucket of each dtype, smaller so that communication starts early. */
  readonly firstBytes: number;
}

interface OpenBucket {
  readonly dtype: DType;
  readonly slots: BucketSlot[];
  numElements: number;
  /** Place in the order of the last item taken. */
  lastPlace: number;
}

/** Place every item; `order` lists each index of `items` once. */
export function planBuckets(
  items: readonly BucketItem[],
  order: readonly number[],
  capacity: BucketCapacity,
): PlannedBucket[] {
  invariant(order.length === items.length, 'a bucket plan takes every item once');
  const open = new Map<DType, OpenBucket>();
  const closed: OpenBucket[] = [];
  const started = new Set<DType>();
  order.forEach((itemIndex, place) => {
    const item = items[itemIndex];
    invariant(item !== undefined, `item ${itemIndex} of a bucket plan exists`);
    const bucket = open.get(item.dtype) ?? { dtype: item.dtype, slots: [], numElements: 0, lastPlace: place };
    open.set(item.dtype, bucket);
    bucket.slots.push({ item: itemIndex, offset: bucket.numElements, numElements: item.numElements });
    bucket.numElements += item.numElements;
    bucket.lastPlace = place;
    const limit = started.has(item.dtype) ? capacity.bytes : capacity.firstBytes;
    if (bucket.numElements * byteSize(item.dtype) >= limit) {
      closed.push(bucket);
      open.delete(item.dtype);
      started.add(item.dtype);
    }
  });
  closed.push(...open.values());
  return closed
    .sort((a, b) => a.lastPlace - b.lastPlace)
    .map(({ dtype, numElements, slots }) => ({ dtype, numElements, slots }));
}

/** The order in which backward is expected to reach items: the last registered first. */
export function reverseOrder(numItems: number): number[] {
  return Array.from({ length: numItems }, (_unused, index) => numItems - 1 - index);
}
