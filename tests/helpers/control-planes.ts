/** Control planes over links in memory, and what a backend above them would announce. */
import type { BackendCapabilities } from '../../src/backend/backend';
import type { Caller } from '../../src/backend/check-arguments';
import { GrpcControlPlane } from '../../src/backend/grpc/control-plane';
import type { ControlGroup } from '../../src/backend/control-plane';
import { DTYPES } from '../../src/core/dtype';
import type { Logger } from '../../src/core/logger';
import { ReduceOp } from '../../src/core/reduce-op';
import { createMemoryMeshes, type MemoryMesh } from './memory-mesh';

const SILENT: Logger = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };

const CAPABILITIES: BackendCapabilities = {
  devices: ['cpu'],
  dtypes: DTYPES,
  reduceOps: Object.values(ReduceOp),
  progress: 'event-loop',
  bitwise: true,
};

export interface ControlRank {
  readonly plane: GrpcControlPlane;
  readonly root: GrpcControlPlane['root'];
  readonly mesh: MemoryMesh;
}

/** What the checks of a call of this rank go by. */
export function callerOf({ rank, ranks }: ControlGroup, timeoutMs = 10_000): Caller {
  return { rank, size: ranks.globalRanks.length, timeoutMs, capabilities: CAPABILITIES };
}

/** Make a world, give it to `test`, and close it. @param seed of the order of deliveries; undefined: link by link */
export async function withControlPlanes(
  size: number,
  test: (ranks: readonly ControlRank[]) => Promise<void>,
  { seed, callSites }: { readonly seed?: number | undefined; readonly callSites?: boolean } = {},
): Promise<void> {
  const ranks = createMemoryMeshes(size, seed).map((mesh): ControlRank => {
    const plane = GrpcControlPlane.over(mesh, { logger: SILENT, callSites });
    return { plane, root: plane.root, mesh };
  });
  try {
    await test(ranks);
  } finally {
    await Promise.all(ranks.map(({ plane }) => plane.close()));
  }
}
