/** DDP over NCCL, on the stand-ins: one process on the whole batch, within roundings; and the mock, where there are none. */
import { World } from '../../src/process-group/world';
import { runWorld } from '../../src/testing/index';
import { count } from '../helpers/counts';
import { trainWithDdp, type DdpArgs, type DdpRun } from './nccl-ddp-program';
import { LIMIT_MS, type NcclProcesses } from './nccl-processes';

const STEPS = count('DDP over nccl: steps', 2, 20);
const SIZES = [1, 2, 4];

const small = { bucketCapMb: 1e-4 };
const trainings: Readonly<Record<string, DdpArgs>> = {
  'the MLP in one bucket': { model: 'MLP', options: {}, steps: STEPS },
  'the MLP in small buckets, unused parameters looked for': {
    model: 'MLP',
    options: { ...small, findUnusedParameters: true },
    steps: STEPS,
  },
  'the MLP, reduced after backward': { model: 'MLP', options: { ...small, gradSync: 'Synchronous' }, steps: STEPS },
  'the tied transformer in one bucket': { model: 'transformer', options: {}, steps: STEPS },
  'the tied transformer in small buckets that gradients are views of': {
    model: 'transformer',
    options: { bucketCapMb: 1e-3, gradientAsBucketView: true },
    steps: STEPS,
  },
};
/** Of these there is no training on the whole batch. */
const onlyWithRanks: Readonly<Record<string, DdpArgs>> = {
  'the MLP, uneven inputs joined': { model: 'MLP', options: small, steps: 2, isUneven: true },
  'the MLP, gradients compressed': { model: 'MLP', options: small, steps: STEPS, isCompressed: true },
};
const all = { ...trainings, ...onlyWithRanks };

/**
 * Sums in another order differ by a few parts in 1e7. AdamW divides by the root of the second moment, so such a part of a
 * gradient becomes about as large a part of lr = 0.01 a step; SGD with momentum 0.9 makes of it ten times lr = 0.1. Clipping
 * to 0.5 keeps gradients below that.
 */
const ROUNDING = 5e-7 * STEPS;
/** A part of a gradient that bfloat16 rounds, three times on four ranks, is 2^-8; of it AdamW makes as above. */
const COMPRESSED = 3 * 2 ** -8 * 0.01 * STEPS;

const distance = (actual: readonly number[], expected: readonly number[]): number => {
  expect(actual).toHaveLength(expected.length);
  return Math.max(0, ...actual.map((value, i) => Math.abs(value - (expected[i] as number))));
};

const meanOf = (runs: readonly DdpRun[], index: number): number =>
  runs.reduce((sum, { losses }) => sum + (losses[index] as number), 0) / runs.length;

export function ddpTests(processes: NcclProcesses): void {
  test.each(SIZES)(
    'on %i ranks',
    async (size) => {
      const names = Object.keys(all);
      const args = Object.values(all);
      const byRank = await processes.inWorld(size, (rank) => rank.call('trainWithDdp', args, LIMIT_MS));
      for (const [index, name] of names.entries()) {
        const training = args[index] as DdpArgs;
        const runs = byRank.map((each) => each[index] as DdpRun);
        const [first] = runs as [DdpRun];
        // every rank holds the same bits
        for (const { parameters } of runs) expect({ name, parameters }).toEqual({ name, parameters: first.parameters });
        const onMock = await runWorld(size, (world) => trainWithDdp(world, training));
        if (size <= 2) {
          // a half is exact, and of two numbers there is one sum
          expect({ name, runs }).toEqual({ name, runs: onMock });
        } else {
          const bound = training.isCompressed === true ? COMPRESSED : ROUNDING;
          const distances = runs.map(({ parameters }, rank) => distance(parameters, onMock[rank]?.parameters ?? []));
          expect({ name, bound, isClose: Math.max(...distances) <= bound, distances }).toMatchObject({ isClose: true });
        }
        if (!(name in trainings)) continue;
        const whole = await trainWithDdp(World.mock(), training);
        const losses = whole.losses.map((_unused, at) => meanOf(runs, at));
        const distances = {
          parameters: distance(first.parameters, whole.parameters),
          losses: distance(losses, whole.losses),
          norms: distance(first.norms, whole.norms),
        };
        const isClose = Math.max(...Object.values(distances)) <= ROUNDING;
        expect({ name, distances, isClose }).toMatchObject({ isClose: true });
      }
    },
    LIMIT_MS,
  );
}
