/** Every stage of ZeRO has the bits of DistributedDataParallel: losses, norms and parameters, in float32. */
import { runWorld, type RunWorldOptions } from '../../src/testing/index';
import { count } from '../helpers/counts';
import { MAX_NORM, trainForParity, type ParityArgs, type ParityRun } from './zero-program';

const WORLD_SIZES = [3, 7, 1, 2, 4];
const STAGES = [0, 1, 2, 3] as const;

function run(size: number, args: ParityArgs, options: RunWorldOptions = {}): Promise<ParityRun[]> {
  return runWorld(size, (world) => trainForParity(world, args), { portable: true, ...options });
}

describe.each(['MLP', 'transformer'] as const)('the %s', (model) => {
  const steps = count(`ZeRO parity: steps of the ${model}`, model === 'MLP' ? 4 : 2, 20);

  const sizes = model === 'MLP' ? WORLD_SIZES.length : count('ZeRO parity: world sizes of the transformer', 3, 5);

  test.each(WORLD_SIZES.slice(0, sizes))(
    'on %i ranks, in portable mode and random schedules',
    async (size) => {
      const expected = await run(size, { model, way: 'ddp', steps });
      for (const stage of STAGES) {
        const ranks = await run(size, { model, way: stage, steps }, { schedule: 'random', seed: 10 * size + stage });
        expect({ stage, ranks }).toEqual({ stage, ranks: expected });
      }
    },
    120_000,
  );
});

test('no schedule of three ranks changes a bit', async () => {
  const args = { model: 'transformer', steps: 2 } as const;
  const expected = await run(3, { ...args, way: 'ddp' });
  for (let seed = 0; seed < count('random schedules of ZeRO', 4, 100); seed++) {
    const stage = STAGES[seed % STAGES.length] as (typeof STAGES)[number];
    const ranks = await run(3, { ...args, way: stage }, { schedule: 'random', seed });
    expect({ seed, stage, ranks }).toEqual({ seed, stage, ranks: expected });
  }
}, 120_000);

test('the training that is compared learns, is clipped, and is not the same with other numbers', async () => {
  const train = (steps: number, model: ParityArgs['model']): Promise<ParityRun[]> =>
    run(2, { model, way: 'ddp', steps });
  const [first, second] = (await train(3, 'transformer')) as [ParityRun, ParityRun];
  expect(first.norms.filter((norm) => norm > MAX_NORM)).not.toEqual([]);
  expect(second.losses).not.toEqual(first.losses); // each rank has samples of its own
  expect([second.norms, second.parameters]).toEqual([first.norms, first.parameters]);
  const before = (await train(2, 'transformer'))[0]?.parameters as Record<string, string>;
  for (const [name, digest] of Object.entries(first.parameters))
    expect([name, before[name]]).not.toEqual([name, digest]);
});
