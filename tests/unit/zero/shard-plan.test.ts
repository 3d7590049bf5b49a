import fc from 'fast-check';
import { paddedSize, piecesOf, planUnit } from '../../../src/zero/shard-plan';
import { count } from '../../helpers/counts';

test('every element of every parameter belongs to one piece of one part, where its offset says', () => {
  const sizes = fc.array(fc.nat({ max: 9 }), { minLength: 1, maxLength: 6 });
  fc.assert(
    fc.property(sizes, fc.integer({ min: 1, max: 8 }), (numElements, numParts) => {
      let next = 0;
      const slots = numElements.map((size, item) => ({ item, offset: (next += size) - size, numElements: size }));
      const plan = planUnit({ dtype: 'float32', slots, numElements: next }, numParts);
      expect(paddedSize(plan)).toBeGreaterThanOrEqual(next);
      expect(paddedSize(plan)).toBeLessThan(next + numParts);
      const owners: string[] = [];
      for (let part = 0; part < numParts; part++) {
        for (const { slot, start, length, offset } of piecesOf(plan, part)) {
          expect(length).toBeGreaterThan(0);
          expect(offset + length).toBeLessThanOrEqual(plan.partSize);
          for (let i = 0; i < length; i++) {
            expect(part * plan.partSize + offset + i).toBe((slots[slot]?.offset as number) + start + i);
            owners.push(`${slot}:${start + i}`);
          }
        }
      }
      expect(owners).toEqual(
        numElements.flatMap((size, slot) => Array.from({ length: size }, (_unused, i) => `${slot}:${i}`)),
      );
    }),
    { numRuns: count('shard plans', 60, 2000), seed: 7 },
  );
});
