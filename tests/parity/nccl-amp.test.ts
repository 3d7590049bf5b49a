/** 16 bits and checkpoints over NCCL, on the stand-ins: what is decided and stored is what it is on other backends. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runWorld } from '../../src/testing/index';
import { count, isLong } from '../helpers/counts';
import { describeNative } from '../helpers/native-build';
import { trainWithCheckpoints, type CheckpointArgs, type CheckpointRun } from './checkpoint-program';
import { BROKEN_STEP, INIT_SCALE, trainInHalf, type AmpArgs, type AmpRun } from './nccl-amp-program';
import { LIMIT_MS, NcclProcesses } from './nccl-processes';

const SIZES = [1, 2, 4];
const STEPS = count('16 bits over nccl: steps', 16, 40);
const lossScale = { initScale: INIT_SCALE };

const trainings: readonly AmpArgs[] = [
  { way: 'ddp', steps: STEPS },
  { way: 'ddp', isStored: true, steps: STEPS },
  { way: 'ddp', isStored: true, dtype: 'bfloat16', steps: STEPS },
  { way: { stage: 2, precision: 'float16', lossScale }, steps: STEPS },
  { way: { stage: 3, precision: 'float16', lossScale, shardDevice: 'cuda' }, steps: STEPS },
];

describeNative('16 bits and checkpoints over nccl on the stand-ins', ['addon', 'stand-ins'], (folder) => {
  const processes = new NcclProcesses(folder);
  let checkpoints: string;
  beforeAll(async () => {
    checkpoints = await mkdtemp(join(tmpdir(), 'lockstep-checkpoint-'));
  });
  afterAll(async () => {
    await processes.close();
    await rm(checkpoints, { recursive: true });
  });

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

  type Saved = Pick<CheckpointArgs, 'stage' | 'shardDevice'>;
  const onBackend: Readonly<
    Record<'nccl' | 'grpc' | 'mock', (size: number, args: CheckpointArgs) => Promise<CheckpointRun[]>>
  > = {
    nccl: (size, args) => processes.inWorld(size, (rank) => rank.call('trainWithCheckpoints', args, LIMIT_MS)),
    grpc: (size, args) =>
      processes.inWorld(size, (rank) => rank.call('trainWithCheckpoints', args, LIMIT_MS), { backend: 'grpc' }),
    mock: (size, args) => runWorld(size, (world) => trainWithCheckpoints(world, args)),
  };
  type BackendName = keyof typeof onBackend;

  const shortLoads: readonly (Saved & { readonly backend: BackendName; readonly size: number })[] = [
    { backend: 'mock', size: 3, stage: 1 },
    { backend: 'grpc', size: 1, stage: 0 },
    { backend: 'nccl', size: 4, stage: 2, shardDevice: 'cuda' },
  ];
  const loads = !isLong
    ? shortLoads
    : (['mock', 'grpc', 'nccl'] as const).flatMap((backend) =>
        [1, 2, 3, 4].flatMap((size) =>
          ([0, 1, 2, 3] as const).flatMap((stage) => [
            { backend, size, stage },
            ...(backend === 'nccl' ? [{ backend, size, stage, shardDevice: 'cuda' as const }] : []),
          ]),
        ),
      );

  test.each<[BackendName, number, Saved]>([
    ['nccl', 2, { stage: 3, shardDevice: 'cuda' }],
    ['grpc', 3, { stage: 2 }],
    ['mock', 2, { stage: 3 }],
  ])(
    'a checkpoint saved on %s by %i ranks is loaded to the bit on every backend, in other worlds and stages',
    async (backend, size, saved) => {
      const folderOfRun = join(checkpoints, `${backend}-${size}`);
      const runs = await onBackend[backend](size, { ...saved, folder: folderOfRun, seed: 1, load: undefined });
      const [first] = runs as [CheckpointRun];
      for (const run of runs) expect(run).toEqual(first);
      for (const { backend: other, size: otherSize, ...place } of loads) {
        for (const load of isLong ? ([1, 2] as const) : ([2] as const)) {
          const loaded = await onBackend[other](otherSize, { ...place, folder: folderOfRun, seed: 2, load });
          const expected = Array(otherSize).fill({ [load]: first[load] });
          expect({ other, otherSize, place, load, loaded }).toEqual({
            other,
            otherSize,
            place,
            load,
            loaded: expected,
          });
        }
      }
    },
    isLong ? 5 * LIMIT_MS : LIMIT_MS,
  );
});
