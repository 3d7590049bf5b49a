/** What a process of the fault tests on NCCL can be told to do. */
import { endingOf, type Ending } from '../../conformance/program';
import { mistakePrograms } from '../../conformance/programs/mistakes';
import { currentWorld } from '../../helpers/process-world';
import { tasks as ordinaryTasks } from './tasks';

/** How the calls of a mismatch ended, and a later one in its group. */
export type MismatchEnd = Awaited<ReturnType<typeof mistakePrograms.mismatches>>[number];

export const tasks = {
  ...ordinaryTasks,

  /** Set these variables of this process, or with null take them away. While it has no world: threads of one may read them. */
  async setVariables(variables: Readonly<Record<string, string | null>>): Promise<void> {
    for (const [name, value] of Object.entries(variables)) {
      if (value === null) delete process.env[name];
      else process.env[name] = value;
    }
    await Promise.resolve();
  },

  /** How an all-reduce of `elements` floats ends. */
  reduce: ({ elements }: { readonly elements: number }): Promise<Ending> =>
    endingOf(currentWorld().group.backend.allReduce(new Float32Array(elements), 'Sum')),

  mismatches: (args: { readonly names: readonly string[] }): Promise<MismatchEnd[]> =>
    mistakePrograms.mismatches(currentWorld().group.backend, args),
};
