/** What a process of the soak does. */
import { currentWorld, worldTasks } from '../helpers/process-world';
import { soak, type SoakArgs } from './soak-program';

export const tasks = {
  ...worldTasks,
  soak: (args: SoakArgs): Promise<string[]> => soak(currentWorld().group.backend, args),
};
