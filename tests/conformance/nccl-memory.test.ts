/** What the NCCL backend does above the addon, on fake GPUs and links in memory: everywhere, without a compiler. */
import { CAPABILITIES } from '../../src/backend/nccl/nccl-backend';
import type { NcclBackend } from '../../src/backend/nccl/nccl-backend';
import { asError } from '../../src/core/errors';
import { toWire } from '../../src/core/error-wire';
import { count } from '../helpers/counts';
import { FakeNccl } from '../helpers/fake-nccl';
import type { MemoryMesh } from '../helpers/memory-mesh';
import { joinWorld } from '../helpers/nccl-worlds';
import { describeBackend } from './backend-suite';
import { ordinaryGaps } from './nccl-gaps';
import type { Program } from './program';
import { programs, type ArgsOf, type ProgramName, type ResultOf } from './programs';
import type { BackendFactory, RankOutcome, WorldRun } from './property';

const crossed = <T>(value: T): T => (value === undefined ? value : (JSON.parse(JSON.stringify(value)) as T));

async function runRank<Name extends ProgramName>(
  { mesh, backend }: { readonly mesh: MemoryMesh; readonly backend: NcclBackend },
  run: WorldRun<Name>,
): Promise<RankOutcome<ResultOf<Name>>> {
  const program = programs[run.program] as Program<ArgsOf<Name>, ResultOf<Name>>;
  try {
    return { returned: true, value: crossed(await program(backend, crossed(run.args))) };
  } catch (error) {
    mesh.destroy(asError(error));
    return { returned: false, error: crossed(toWire(error)) };
  }
}

const factory: BackendFactory = {
  capabilities: CAPABILITIES,
  oneCaseIn: count('conformance of nccl on fake GPUs: of many cases one in', 10, 1),
  async run(run) {
    const network = new FakeNccl(run.size);
    const timeoutMs = run.timeoutMs ?? 10_000;
    const ranks = await Promise.all(
      joinWorld(network, { timeoutMs, joinTimeoutMs: 10_000 }).map(async ({ mesh, joined }) => ({
        mesh,
        backend: await joined,
      })),
    );
    let outcomes;
    try {
      outcomes = await Promise.all(ranks.map((rank) => runRank(rank, run)));
    } finally {
      await Promise.all(ranks.map(({ backend }) => backend.close()));
    }
    if (network.misuses.length > 0) throw new Error(network.misuses.join('\n'));
    network.ranks.forEach(({ numBlocks, numOpen }, rank) => {
      if (numBlocks > 0 || numOpen > 0)
        throw new Error(`rank ${rank} has left ${numBlocks} blocks, ${numOpen} devices`);
    });
    return outcomes;
  },
};

describeBackend('nccl on fake GPUs', factory, ordinaryGaps);
