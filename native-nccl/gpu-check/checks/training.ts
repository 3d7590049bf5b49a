/** The digits example, wrapped as users wrap it, on the NCCL backend against the mock. */
import { World } from 'lockstep';
import { isSameBits } from '../../../src/core/dtype';
import { FLAT_UPDATE_TOLERANCE } from '../../../src/core/flat-update';
import { expect } from '../bench';
import type { Check } from '../check';
import { startingParameters, trainWithDdp, trainWithZero, worstRelative, type StepsResult } from '../digits-steps';

const STEPS = 5;
/** Of losses after some steps: an update that is off by little moves all gradients after it. */
const LOSS_TOLERANCE = 1e-4;

async function onMock(train: (world: World) => Promise<StepsResult>): Promise<StepsResult> {
  const world = World.mock();
  try {
    return await train(world);
  } finally {
    await world.close();
  }
}

/** A world of one averages nothing: whatever the way of the gradients, the bits are the mock's. */
function expectSameBits(found: StepsResult, expected: StepsResult): void {
  expect(
    found.losses.join() === expected.losses.join(),
    `losses ${found.losses.join()}, expected ${expected.losses.join()}`,
  );
  expect(isSameBits(found.parameters, expected.parameters), 'the parameters have other bits than on the mock');
}

export const trainingChecks: readonly Check[] = [
  {
    name: 'DDP has the bits of the mock',
    async run(bench) {
      const found = await trainWithDdp(await bench.world(), STEPS);
      bench.note('losses', found.losses);
      expectSameBits(found, await onMock((world) => trainWithDdp(world, STEPS)));
    },
  },
  ...([1, 2, 3] as const).map((stage): Check => ({
    name: `ZeRO stage ${stage} with shards on the host has the bits of the mock`,
    async run(bench) {
      const found = await trainWithZero(await bench.world(), STEPS, { stage });
      expectSameBits(found, await onMock((world) => trainWithZero(world, STEPS, { stage })));
    },
  })),
  ...([1, 2, 3] as const).map((stage): Check => ({
    name: `ZeRO stage ${stage} with shards on the device: a step within ${FLAT_UPDATE_TOLERANCE}, then ${STEPS} losses`,
    async run(bench) {
      const world = await bench.world();
      const options = { stage, shardDevice: 'cuda' } as const;
      const one = await trainWithZero(world, 1, options);
      const expected = await onMock((mock) => trainWithZero(mock, 1, { stage }));
      const worst = worstRelative(one.parameters, expected.parameters, startingParameters());
      bench.note('worstRelativeDifference', worst);
      expect(worst <= FLAT_UPDATE_TOLERANCE, `a parameter is off by ${worst}, relative`);
      const { losses } = await trainWithZero(world, STEPS, options);
      const reference = (await onMock((mock) => trainWithZero(mock, STEPS, { stage }))).losses;
      const worstLoss = losses.reduce(
        (most, loss, i) => Math.max(most, Math.abs(loss / (reference[i] as number) - 1)),
        0,
      );
      bench.note('worstLossDifference', worstLoss);
      expect(worstLoss <= LOSS_TOLERANCE, `losses ${losses.join(', ')}, expected ${reference.join(', ')}`);
    },
  })),
];
