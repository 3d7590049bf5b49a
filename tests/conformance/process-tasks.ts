/** What a process of the conformance suite does: join a world, run a program of the suite on it, leave. */
import { toWire } from '../../src/core/error-wire';
import { asError } from '../../src/core/errors';
import { currentWorld, worldTasks } from '../helpers/process-world';
import type { Program } from './program';
import { programs, type ProgramName } from './programs';
import type { RankOutcome } from './property';

export const tasks = {
  ...worldTasks,

  /** What the program did. A rank whose program throws is lost to the others, who learn what it said. */
  async run({
    program,
    args,
  }: {
    readonly program: ProgramName;
    readonly args: unknown;
  }): Promise<RankOutcome<unknown>> {
    const { backend } = currentWorld().group;
    try {
      return {
        returned: true,
        value: await (programs[program] as Program<unknown, unknown>)(backend, args ?? undefined),
      };
    } catch (error) {
      // What Node.js does before such an error ends the process, which has further worlds to serve here.
      (process as NodeJS.EventEmitter).emit('uncaughtExceptionMonitor', asError(error), 'uncaughtException');
      return { returned: false, error: toWire(error) };
    }
  },
};
