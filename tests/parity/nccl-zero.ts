/** ZeRO over NCCL, on the stand-ins, with shards in host memory and on the device: the training that the mock makes. */
import { runWorld } from '../../src/testing/index';
import { count } from '../helpers/counts';
import { LIMIT_MS, type NcclProcesses } from './nccl-processes';
import { expectClose, expectCloseRun, expectNearRun } from './zero-device-bounds';
import { optimizers, trainOnDevice } from './zero-device-program';
import { plainRun, type DeviceTraining, type PlainRun } from './zero-device-tasks';
import { trainForParity, type ParityArgs, type ParityRun } from './zero-program';

const SIZES = [2, 4, 1];
/** Each size takes others. */
const ONE_IN = count('ZeRO over nccl: of 60 trainings one in', 31, 1);

const STEPS = count('ZeRO over nccl: steps of each stage against DDP', 2, 20);
/** Sums of four in another order differ by a few parts in 1e7, which every step and its clipping hand on. */
const ROUNDING = 2e-6 * STEPS;
const stages: readonly ParityArgs[] = (['MLP', 'transformer'] as const).flatMap((model) =>
  ([0, 1, 2, 3] as const).map((way) => ({ model, way, steps: STEPS })),
);

const trainings: readonly DeviceTraining[] = (['float32', 'bfloat16', 'float16'] as const).flatMap((precision) =>
  ([0, 1, 2, 3] as const).flatMap((stage) =>
    Object.keys(optimizers).map((optimizer) => ({ optimizer, options: { stage, precision } })),
  ),
);

const onDevice = ({ optimizer, options }: DeviceTraining): DeviceTraining => ({
  optimizer,
  options: { ...options, shardDevice: 'cuda' },
});

/** As it comes from another process: a norm that is no number is null. */
const travelled = (run: PlainRun): PlainRun => JSON.parse(JSON.stringify(run)) as PlainRun;

function onMock(size: number, { optimizer, options }: DeviceTraining): Promise<PlainRun[]> {
  const optimizerFor = optimizers[optimizer] as (typeof optimizers)[string];
  return runWorld(size, async (world) => travelled(plainRun(await trainOnDevice(world, optimizerFor, options))));
}

export function zeroTests(processes: NcclProcesses): void {
  test.each(SIZES)(
    'every stage on %i ranks is DDP on the mock',
    async (size) => {
      const byRank = await processes.inWorld(size, (rank) => rank.call('trainStages', stages, LIMIT_MS));
      for (const model of ['MLP', 'transformer'] as const) {
        const ddp = await runWorld(size, (world) => trainForParity(world, { model, way: 'ddp', steps: STEPS }));
        for (const [index, { model: trained, way }] of stages.entries()) {
          if (trained !== model) continue;
          const runs = byRank.map((each) => each[index] as ParityRun);
          // a half is exact, and of two numbers there is one sum
          if (size <= 2) expect({ model, way, runs }).toEqual({ model, way, runs: ddp });
          for (const [rank, { losses, norms, parameters }] of runs.entries()) {
            expect({ model, way, parameters }).toEqual({ model, way, parameters: runs[0]?.parameters });
            const { losses: lossesOfDdp, norms: normsOfDdp } = ddp[rank] as ParityRun;
            expectClose([...losses, ...norms], [...lossesOfDdp, ...normsOfDdp], ROUNDING);
          }
        }
      }
    },
    LIMIT_MS,
  );

  test.each(SIZES.slice(0, count('ZeRO over nccl: sizes of worlds of every precision', 1, 3)))(
    'every precision, stage and optimizer on %i ranks is as on the mock, on the host and on the device',
    async (size) => {
      const chosen = trainings.filter((_unused, index) => (index + 4 * size) % ONE_IN === 0);
      const both = [...chosen, ...chosen.map(onDevice)];
      const byRank = await processes.inWorld(size, (rank) => rank.call('trainOnDevice', both, LIMIT_MS));
      for (const [index, training] of chosen.entries()) {
        const [onHost, onCuda] = [index, chosen.length + index].map((at) => byRank.map((runs) => runs[at] as PlainRun));
        const { precision } = training.options;
        for (const runs of [onHost, onCuda] as PlainRun[][]) {
          const { norms, parameters, state } = runs[0] as PlainRun;
          for (const run of runs) expect({ training, run }).toMatchObject({ run: { norms, parameters, state } });
        }
        const expected = await onMock(size, training);
        // as above; half a subnormal of float16 would be rounded, and there is none
        if (size <= 2) expect({ training, runs: onHost }).toEqual({ training, runs: expected });
        else expectNearRun((onHost as PlainRun[])[0] as PlainRun, expected[0] as PlainRun, precision ?? 'float32');
        const [cuda, host] = [onCuda?.[0] as PlainRun, onHost?.[0] as PlainRun];
        expect([cuda.deviceBytes > 0, host.deviceBytes]).toEqual([true, 0]);
        expectCloseRun(cuda, host, precision ?? 'float32');
      }
    },
    LIMIT_MS,
  );
}
