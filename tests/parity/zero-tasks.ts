/** What a process of the ZeRO tests does. */
import { currentWorld, worldTasks } from '../helpers/process-world';
import { trainWithCheckpoints, type CheckpointArgs, type CheckpointRun } from './checkpoint-program';
import { trainMeasured, type MemoryArgs, type MemoryRun } from './zero-memory-program';
import { trainForParity, type ParityArgs, type ParityRun } from './zero-program';

export const tasks = {
  ...worldTasks,

  /** Several trainings, one after the other, in one world. */
  async train(trainings: readonly ParityArgs[]): Promise<ParityRun[]> {
    const runs: ParityRun[] = [];
    for (const args of trainings) runs.push(await trainForParity(currentWorld(), args));
    return runs;
  },

  trainWithCheckpoints: (args: CheckpointArgs): Promise<CheckpointRun> => trainWithCheckpoints(currentWorld(), args),

  trainMeasured: (args: MemoryArgs): Promise<MemoryRun> => trainMeasured(currentWorld(), args),
};
