/** What a process of the parity tests on NCCL does. */
import { currentWorld, worldTasks } from '../helpers/process-world';
import { trainWithCheckpoints, type CheckpointArgs, type CheckpointRun } from './checkpoint-program';
import { trainInHalf, type AmpArgs, type AmpRun } from './nccl-amp-program';
import { trainWithDdp, type DdpArgs, type DdpRun } from './nccl-ddp-program';
import { tasks as deviceTasks } from './zero-device-tasks';
import { tasks as zeroTasks } from './zero-tasks';

export const tasks = {
  ...worldTasks,

  /** Several trainings, one after the other, in one world. */
  async trainWithDdp(trainings: readonly DdpArgs[]): Promise<DdpRun[]> {
    const runs: DdpRun[] = [];
    for (const training of trainings) runs.push(await trainWithDdp(currentWorld(), training));
    return runs;
  },

  trainStages: zeroTasks.train,

  trainOnDevice: deviceTasks.train,

  async trainInHalf(trainings: readonly AmpArgs[]): Promise<AmpRun[]> {
    const runs: AmpRun[] = [];
    for (const training of trainings) runs.push(await trainInHalf(currentWorld(), training));
    return runs;
  },

  trainWithCheckpoints: (args: CheckpointArgs): Promise<CheckpointRun> => trainWithCheckpoints(currentWorld(), args),
};
