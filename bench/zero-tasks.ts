/** What a rank process of bench/zero.ts does. */
import { currentWorld, worldTasks } from '../tests/helpers/process-world';
import { makeTrainers, type ModelName, type Trainer, type Way } from './zero-trainer';

let trainers: ReadonlyMap<Way, Trainer> = new Map();

export const tasks = {
  ...worldTasks,

  async prepare(model: ModelName): Promise<void> {
    trainers = await makeTrainers(currentWorld(), model);
  },

  /** Milliseconds of one step, from when all ranks begin to when all have ended. */
  async step(way: Way): Promise<number> {
    const { group } = currentWorld();
    await group.barrier();
    const startedMs = performance.now();
    await trainers.get(way)?.();
    await group.barrier();
    return performance.now() - startedMs;
  },
};
