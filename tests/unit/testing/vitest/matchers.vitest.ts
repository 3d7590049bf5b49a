/** Run by Vitest, from vitest.test.ts: what people import from lockstep/testing works there as in Jest. */
import { expect, test } from 'vitest';
import { lockstepMatchers, runWorld, type LockstepMatchers } from '../../../../src/testing/index';

declare module 'vitest' {
  // eslint-disable-next-line @typescript-eslint/no-empty-object-type, @typescript-eslint/no-unused-vars -- as LockstepMatchers says
  interface Assertion<T> extends LockstepMatchers<void> {}
}

expect.extend(lockstepMatchers);

test('the matchers pass, fail and negate', () => {
  const [one, two] = [Float32Array.of(1), Float32Array.of(2)];
  expect(one).toEqualBits(Float32Array.of(1));
  expect(one).not.toEqualBits(two);
  expect(one).toBeCloseToTensor(two, { atol: 1 });
  expect(() => expect(one).toEqualBits(two)).toThrow(/received: 1 {2}0x3f800000/);
});

test('a world runs, and its errors name lines of the test', async () => {
  const ranks = await runWorld(3, async (world) => {
    await world.barrier();
    return world.rank;
  });
  expect(ranks).toEqual([0, 1, 2]);
  const stuck = runWorld(2, (world) => (world.rank === 0 ? world.barrier() : undefined));
  await expect(stuck).rejects.toThrow(/rank 0 waits in barrier.*matchers\.vitest\.ts:\d+:\d+/);
});
