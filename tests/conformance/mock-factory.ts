import type { Backend } from '../../src/backend/backend';
import { MockBackend } from '../../src/backend/mock/mock-backend';
import type { MockOptions } from '../../src/backend/mock/mock-options';
import { toWire } from '../../src/core/error-wire';
import type { Program } from './program';
import { programs, type ArgsOf, type ProgramName, type ResultOf } from './programs';
import type { BackendFactory, RankOutcome, WorldRun } from './property';

/** Arguments and results as they would be after crossing a process boundary, so that no program relies on one process. */
const crossed = <T>(value: T): T => (value === undefined ? value : (JSON.parse(JSON.stringify(value)) as T));

async function runRank<Name extends ProgramName>(
  backend: MockBackend,
  run: WorldRun<Name>,
  wrap: (backend: MockBackend) => Backend,
): Promise<RankOutcome<ResultOf<Name>>> {
  const program = programs[run.program] as Program<ArgsOf<Name>, ResultOf<Name>>;
  try {
    return { returned: true, value: crossed(await backend.run(() => program(wrap(backend), crossed(run.args)))) };
  } catch (error) {
    return { returned: false, error: crossed(toWire(error)) };
  }
}

/** Worlds of mock ranks in this process; `wrap` is for tests of the suite itself. */
export function mockFactory(
  options: MockOptions = {},
  wrap: (backend: MockBackend) => Backend = (backend) => backend,
): BackendFactory {
  return {
    capabilities: MockBackend.single().capabilities,
    async run(run) {
      const world = MockBackend.createWorld(run.size, { ...options, timeoutMs: run.timeoutMs ?? 10_000 });
      try {
        return await Promise.all(world.map((backend) => runRank(backend, run, wrap)));
      } finally {
        for (const backend of world) await backend.close();
      }
    },
  };
}
