/** Checkpoints over NCCL, on the stand-ins: what is saved there is loaded elsewhere, and the other way round. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runWorld } from '../../src/testing/index';
import { isLong } from '../helpers/counts';
import { trainWithCheckpoints, type CheckpointArgs, type CheckpointRun } from './checkpoint-program';
import { LIMIT_MS, type NcclProcesses } from './nccl-processes';

export function checkpointTests(processes: NcclProcesses): void {
  let checkpoints: string;
  beforeAll(async () => {
    checkpoints = await mkdtemp(join(tmpdir(), 'lockstep-checkpoint-'));
  });
  afterAll(() => rm(checkpoints, { recursive: true }));

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
    LIMIT_MS,
  );
}
