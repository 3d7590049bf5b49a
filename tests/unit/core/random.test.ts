import { setImmediate as nextTurn } from 'node:timers/promises';
import { Generator } from '../../../src/core/generator';
import { defaultGenerator, generatorKey, manualSeed } from '../../../src/core/random';

test('manualSeed restarts the default generator', () => {
  manualSeed(7);
  const first = [defaultGenerator().nextUint32(), defaultGenerator().nextUint32()];
  manualSeed(7);
  expect([defaultGenerator().nextUint32(), defaultGenerator().nextUint32()]).toEqual(first);
  expect(new Generator(7).nextUint32()).toBe(first[0]);
});

test('contexts that interleave draw from generators of their own, and seed only theirs', async () => {
  const alone = [3, 4].map((seed) => {
    const generator = new Generator(seed);
    return [generator.nextUint32(), generator.nextUint32(), generator.nextUint32()];
  });
  const together = await Promise.all(
    [3, 4].map((seed) =>
      generatorKey.run(new Generator(0), async () => {
        manualSeed(seed);
        const drawn: number[] = [];
        for (let i = 0; i < 3; i++) {
          await nextTurn();
          drawn.push(defaultGenerator().nextUint32());
        }
        return drawn;
      }),
    ),
  );
  expect(together).toEqual(alone);
});
