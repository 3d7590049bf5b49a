import type { RunOptions } from './run-options';

/** The variables that tell a process which rank of which job it is: torchrun's, and ours. */
export function rankVariables(
  options: RunOptions,
  localRank: number,
  masterPort: number,
  generation: number,
): Readonly<Record<string, string>> {
  const { nproc, nnodes, nodeRank, masterAddr, backend, dataPlane, timeoutMs } = options;
  return {
    RANK: String(nodeRank * nproc + localRank),
    LOCAL_RANK: String(localRank),
    WORLD_SIZE: String(nnodes * nproc),
    LOCAL_WORLD_SIZE: String(nproc),
    GROUP_RANK: String(nodeRank),
    MASTER_ADDR: masterAddr,
    MASTER_PORT: String(masterPort),
    LOCKSTEP_BACKEND: backend,
    LOCKSTEP_GENERATION: String(generation),
    ...(dataPlane === undefined ? {} : { LOCKSTEP_DATA_PLANE: dataPlane }),
    ...(timeoutMs === undefined ? {} : { LOCKSTEP_TIMEOUT_MS: String(timeoutMs) }),
  };
}
