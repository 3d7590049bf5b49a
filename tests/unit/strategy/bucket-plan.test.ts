import fc from 'fast-check';
import { planBuckets, reverseOrder, type BucketItem } from '../../../src/strategy/bucket-plan';
import { byteSize } from '../../../src/core/dtype';

const KIB256 = 65536; // float32 elements of 256 KiB
const float32 = (numElements: number): BucketItem => ({ numElements, dtype: 'float32' });
const twelve = Array.from({ length: 12 }, () => float32(KIB256));

function itemsOf(plan: ReturnType<typeof planBuckets>): number[][] {
  return plan.map(({ slots }) => slots.map(({ item }) => item));
}

test('twelve gradients of 256 KiB under 25 MiB with a first bucket of 1 MiB fall as in PyTorch', () => {
  const plan = planBuckets(twelve, reverseOrder(12), { bytes: 25 * 2 ** 20, firstBytes: 2 ** 20 });
  expect(itemsOf(plan)).toEqual([
    [11, 10, 9, 8],
    [7, 6, 5, 4, 3, 2, 1, 0],
  ]);
});

test('a tiny capacity gives each gradient a bucket of its own, since none is ever cut', () => {
  const plan = planBuckets(twelve, reverseOrder(12), { bytes: 1000, firstBytes: 1000 });
  expect(itemsOf(plan)).toEqual(reverseOrder(12).map((item) => [item]));
});

test('dtypes never share a bucket, and buckets are numbered by their last item', () => {
  const items: BucketItem[] = [float32(4), { numElements: 4, dtype: 'bfloat16' }, float32(4)];
  const plan = planBuckets(items, [2, 1, 0], { bytes: 1000, firstBytes: 1000 });
  expect(plan.map(({ dtype }) => dtype)).toEqual(['bfloat16', 'float32']);
  expect(itemsOf(plan)).toEqual([[1], [2, 0]]);
});

test('every item lies in exactly one place, without gaps, whatever the sizes, the order and the capacity', () => {
  const item = fc.record({
    numElements: fc.integer({ min: 0, max: 50 }),
    dtype: fc.constantFrom('float32' as const, 'float64' as const, 'bfloat16' as const),
  });
  const plans = fc.array(item, { maxLength: 20 }).chain((items) =>
    fc.record({
      items: fc.constant(items),
      order: fc.shuffledSubarray([...items.keys()], { minLength: items.length, maxLength: items.length }),
      bytes: fc.integer({ min: 1, max: 400 }),
      firstBytes: fc.integer({ min: 1, max: 100 }),
    }),
  );
  fc.assert(
    fc.property(plans, ({ items, order, bytes, firstBytes }) => {
      const plan = planBuckets(items, order, { bytes, firstBytes });
      const placed = plan.flatMap(({ slots }) => slots.map((slot) => slot.item));
      expect([...placed].sort((a, b) => a - b)).toEqual([...items.keys()]);
      for (const { slots, numElements, dtype } of plan) {
        let offset = 0;
        slots.forEach((slot, place) => {
          expect(slot.offset).toBe(offset);
          expect(slot.numElements).toBe(items[slot.item]?.numElements);
          expect(items[slot.item]?.dtype).toBe(dtype);
          offset += slot.numElements;
          // closed as soon as the capacity is reached
          if (place < slots.length - 1) expect(offset * byteSize(dtype)).toBeLessThan(Math.max(bytes, firstBytes));
        });
        expect(numElements).toBe(offset);
      }
    }),
    { seed: 11, numRuns: 200 },
  );
});
