/** The gRPC backend's groups, collectives and failures on links in memory: all rules, without a network. */
import { GrpcBackend, type GrpcBackendOptions } from '../../src/backend/grpc/grpc-backend';
import { asError } from '../../src/core/errors';
import { toWire } from '../../src/core/error-wire';
import { count } from '../helpers/counts';
import { createMemoryMeshes, type MemoryMesh } from '../helpers/memory-mesh';
import { describeBackend } from './backend-suite';
import type { Program } from './program';
import { programs, type ArgsOf, type ProgramName, type ResultOf } from './programs';
import type { BackendFactory, RankOutcome, WorldRun } from './property';

/** Arguments and results as they would be after crossing a process boundary. */
const crossed = <T>(value: T): T => (value === undefined ? value : (JSON.parse(JSON.stringify(value)) as T));

interface RunningRank {
  readonly mesh: MemoryMesh;
  readonly backend: GrpcBackend;
}

async function runRank<Name extends ProgramName>(
  { mesh, backend }: RunningRank,
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

/** @param seed of the order of deliveries; undefined: link by link */
function memoryFactory(seed?: number, options: GrpcBackendOptions = {}, oneCaseIn = 1): BackendFactory {
  const [mesh] = createMemoryMeshes(1);
  return {
    capabilities: GrpcBackend.over(mesh as MemoryMesh, options).capabilities,
    oneCaseIn,
    async run(run) {
      const ranks = createMemoryMeshes(run.size, seed).map((each): RunningRank => ({
        mesh: each,
        backend: GrpcBackend.over(each, { ...options, timeoutMs: run.timeoutMs ?? 10_000 }),
      }));
      try {
        return await Promise.all(ranks.map((rank) => runRank(rank, run)));
      } finally {
        await Promise.all(ranks.map(({ backend }) => backend.close()));
      }
    },
  };
}

/** Neither the order of deliveries nor the schedule changes anything about which case is right. */
const oneCaseIn = count('conformance in further modes of the links in memory: of many cases one in', 10, 1);

const oneCaseHereIn = count('conformance over links in memory: of many cases one in', 5, 1);
describeBackend('grpc over links in memory', memoryFactory(undefined, {}, oneCaseHereIn));

for (let seed = 1; seed <= count('conformance: random deliveries', 1, 20); seed++) {
  describeBackend(`grpc over links in memory, random deliveries ${seed}`, memoryFactory(seed, {}, oneCaseIn));
}

describeBackend(
  'grpc over links in memory, deterministic: false',
  memoryFactory(undefined, { deterministic: false }, oneCaseIn),
);
