/** Worlds of the NCCL backend in this process: fake GPUs, and control planes over links in memory. */
import { connectNccl } from '../../src/backend/nccl/connect';
import type { NcclBackend } from '../../src/backend/nccl/nccl-backend';
import { GrpcControlPlane } from '../../src/backend/grpc/control-plane';
import type { Backend } from '../../src/backend/backend';
import type { BackendInit } from '../../src/backend/backend-init';
import type { Logger } from '../../src/core/logger';
import type { FakeRank } from './fake-gpu';
import { FakeNccl } from './fake-nccl';
import { createMemoryMeshes, type MemoryMesh } from './memory-mesh';

export const SILENT: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
};

export interface NcclRank {
  readonly backend: NcclBackend;
  readonly mesh: MemoryMesh;
  readonly gpu: FakeRank;
}

/** How a rank that is not `backend` ended. */
export interface JoiningRank {
  readonly mesh: MemoryMesh;
  readonly gpu: FakeRank;
  readonly joined: Promise<NcclBackend>;
}

export type JoinOptions = Partial<Omit<BackendInit, 'rank' | 'worldSize'>> & {
  readonly seed?: number;
  /** What is wrong with a rank's machine. */
  readonly reasons?: Readonly<Record<number, string>>;
};

/** Begin to make a world on `network`. */
export function joinWorld(network: FakeNccl, { seed, reasons = {}, ...init }: JoinOptions = {}): JoiningRank[] {
  const size = network.ranks.length;
  return createMemoryMeshes(size, seed).map((mesh, rank) => {
    const gpu = network.rank(rank);
    const reason = reasons[rank];
    const load = () =>
      reason === undefined ? { addon: gpu.addon, probe: gpu.addon.probe({ cuda: [], nccl: [] }) } : { reason };
    const connect = (each: BackendInit) =>
      Promise.resolve(GrpcControlPlane.over(mesh, { logger: SILENT, callSites: each.callSites }));
    const joined = connectNccl({ logger: SILENT, timeoutMs: 10_000, ...init, rank, worldSize: size }, connect, {
      load,
      readKernels: () => 'kernels',
    });
    joined.catch(() => undefined); // the test looks at it later
    return { mesh, gpu, joined };
  });
}

/** Make a world, give it to `test`, and close it. */
export async function withNcclWorld(
  size: number,
  test: (ranks: readonly NcclRank[], network: FakeNccl) => Promise<void>,
  options: JoinOptions = {},
): Promise<void> {
  const network = new FakeNccl(size);
  const joining = joinWorld(network, options);
  const ranks = await Promise.all(joining.map(async ({ mesh, gpu, joined }) => ({ mesh, gpu, backend: await joined })));
  try {
    await test(ranks, network);
  } finally {
    await Promise.all(ranks.map(({ backend }) => backend.close()));
  }
}

/** What the call rejects with. */
export const failureOf = async (call: PromiseLike<unknown>): Promise<Error> => {
  try {
    await call;
  } catch (error) {
    return error as Error;
  }
  throw new Error('the call succeeded');
};

/** Run on all ranks at once. */
export const onAll = <Result>(
  ranks: readonly NcclRank[],
  run: (backend: Backend, rank: number) => PromiseLike<Result>,
) => Promise.all(ranks.map(({ backend }, rank) => run(backend, rank)));

/** Let the event loop turn so often. */
export const turns = async (count: number): Promise<void> => {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setImmediate(resolve));
};

/** Calls have given back their memory. */
export const expectNoMemory = (ranks: readonly NcclRank[]): void => {
  expect(ranks.map(({ gpu }) => gpu.numBlocks)).toEqual(ranks.map(() => 0));
};
