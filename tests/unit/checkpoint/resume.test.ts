import { rm } from 'node:fs/promises';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { defaultGenerator } from '../../../src/core/random';
import { bitsOf, makeFolder, runOnDisk, startRun } from './training';

let folder: string;
beforeEach(async () => {
  folder = await makeFolder();
});
afterEach(() => rm(folder, { recursive: true }));

describe.each([1, 2, 3])('on %i ranks', (size) => {
  test('a resumed run has the bits of one that never stopped', async () => {
    const options = { portable: true, seed: 5 } as const;
    const whole = await runOnDisk(
      size,
      async ({ group }) => {
        const run = startRun(group, 11);
        const losses = await run.train(6);
        return { losses, bits: bitsOf(run), random: defaultGenerator().getState() };
      },
      options,
    );
    const first = await runOnDisk(
      size,
      async ({ group }) => {
        const run = startRun(group, 11);
        const losses = await run.train(3);
        await saveCheckpoint(folder, run.state, group, { step: 3 });
        return losses;
      },
      options,
    );
    const resumed = await runOnDisk(
      size,
      async ({ group }) => {
        const run = startRun(group, 99); // other initial values
        const loaded = await loadCheckpoint(folder, run.state, group);
        expect(loaded).toEqual({ step: 3, path: `${folder}/step-3` });
        const losses = await run.train(3);
        return { losses, bits: bitsOf(run), random: defaultGenerator().getState() };
      },
      options,
    );
    resumed.forEach(({ losses, bits, random }, rank) => {
      expect([...first[rank]!, ...losses]).toEqual(whole[rank]?.losses);
      expect(bits).toEqual(whole[rank]?.bits);
      expect(random).toEqual(whole[rank]?.random);
    });
  });
});
