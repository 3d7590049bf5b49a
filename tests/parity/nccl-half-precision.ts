/** 16 bits over NCCL, on the stand-ins: an overflow is decided together, as on the mock. */
import { runWorld } from '../../src/testing/index';
import { count } from '../helpers/counts';
import { BROKEN_STEP, INIT_SCALE, trainInHalf, type AmpArgs, type AmpRun } from './nccl-amp-program';
import { LIMIT_MS, type NcclProcesses } from './nccl-processes';

const SIZES = [2, 4, 1].slice(0, count('16 bits over nccl: sizes of worlds', 1, 3));
const STEPS = count('16 bits over nccl: steps', 16, 40);
const lossScale = { initScale: INIT_SCALE };

const trainings: readonly AmpArgs[] = [
  { way: 'ddp', steps: STEPS },
  { way: 'ddp', isStored: true, steps: STEPS },
  { way: 'ddp', isStored: true, dtype: 'bfloat16', steps: STEPS },
  { way: { stage: 2, precision: 'float16', lossScale }, steps: STEPS },
  { way: { stage: 3, precision: 'float16', lossScale, shardDevice: 'cuda' }, steps: STEPS },
];

export function halfTests(processes: NcclProcesses): void {
  test.each(SIZES)(
    'on %i ranks an overflow, on all ranks or on one alone, leaves out the step on all of them, as on the mock',
    async (size) => {
      const byRank = await processes.inWorld(size, (rank) => rank.call('trainInHalf', trainings, LIMIT_MS));
      for (const [index, training] of trainings.entries()) {
        const runs = byRank.map((each) => each[index] as AmpRun);
        const { made, scales, parameters } = runs[0] as AmpRun;
        for (const run of runs) expect({ training, run }).toEqual({ training, run: { made, scales, parameters } });
        expect(made[BROKEN_STEP]).toBe(false);
        if (training.dtype !== 'bfloat16') expect(made[0]).toBe(false); // of that scale
        expect(made.filter(Boolean).length).toBeGreaterThan(STEPS / 4);

        const isOnDevice = training.way !== 'ddp' && training.way.shardDevice === 'cuda';
        const way = isOnDevice ? { ...(training.way as object), shardDevice: 'cpu' as const } : training.way;
        const expected = (await runWorld(size, (world) => trainInHalf(world, { ...training, way })))[0] as AmpRun;
        expect({ training, made, scales }).toEqual({ training, made: expected.made, scales: expected.scales });
        // as in float32; kernels, and sums in another order, round otherwise
        if (size <= 2 && !isOnDevice)
          expect({ training, parameters }).toEqual({ training, parameters: expected.parameters });
      }
    },
    LIMIT_MS,
  );
}
