import type { Backend } from '../../src/backend/backend';
import { MockBackend } from '../../src/backend/mock/mock-backend';
import type { MockOptions } from '../../src/backend/mock/mock-options';
import { toWire } from '../../src/core/error-wire';
import type { Program } from './program';
import { programs, type ArgsOf, type ProgramName, type ResultOf } from './programs';
import type { BackendFactory, RankOutcome, WorldRun } from './property';

/** Arguments and results as they would be after crossing a process boundary, so that no program relies on one process. */
const crossed = <T>(value: T): T => (value === undefined ? value : (JSON.parse(JSON.stringify(value)) as T));

export interface MockFactoryOptions {
  /** Without `run`, as a test that calls the backends of `createWorld` itself. */
  readonly isBare?: boolean;
  /** As in BackendFactory. */
  readonly oneCaseIn?: number;
  /** For tests of the suite itself. */
  readonly wrap?: (backend: MockBackend) => Backend;
}

async function runRank<Name extends ProgramName>(
  backend: MockBackend,
  run: WorldRun<Name>,
  { isBare = false, wrap = (self) => self }: MockFactoryOptions,
): Promise<RankOutcome<ResultOf<Name>>> {
  const program = programs[run.program] as Program<ArgsOf<Name>, ResultOf<Name>>;
  const start = (): Promise<ResultOf<Name>> => program(wrap(backend), crossed(run.args));
  try {
    return { returned: true, value: crossed(await (isBare ? start() : backend.run(start))) };
  } catch (error) {
    if (isBare) await backend.close(); // nobody else would tell the others that this rank is gone
    return { returned: false, error: crossed(toWire(error)) };
  }
}

/** Worlds of mock ranks in this process. */
export function mockFactory(mockOptions: MockOptions = {}, options: MockFactoryOptions = {}): BackendFactory {
  return {
    capabilities: MockBackend.single().capabilities,
    oneCaseIn: options.oneCaseIn,
    async run(run) {
      const world = MockBackend.createWorld(run.size, { ...mockOptions, timeoutMs: run.timeoutMs ?? 10_000 });
      try {
        return await Promise.all(world.map((backend) => runRank(backend, run, options)));
      } finally {
        for (const backend of world) await backend.close();
      }
    },
  };
}
