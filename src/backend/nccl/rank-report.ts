/** What each rank says of its device and libraries before NCCL starts, and what all ranks conclude from it, alike. */
import { z } from 'zod';
import { BackendUnavailableError, InvalidArgumentError, asError } from '../../core/errors';
import { withFullStop } from '../../core/full-stop';
import { ncclVersionText } from './load-nccl';

const schema = z.object({
  host: z.string(),
  /** Why this rank cannot take part. */
  problem: z.string().optional(),
  device: z.object({ index: z.number(), name: z.string(), uuid: z.string() }).optional(),
  ncclVersion: z.number().optional(),
  driverVersion: z.number().optional(),
  /** NCCL_MULTI_RANK_GPU_ENABLE=1: several ranks may share a device. */
  mayShareDevice: z.boolean(),
});
export type RankReport = z.infer<typeof schema>;

export function encodeReport(report: RankReport): Uint8Array {
  return Buffer.from(JSON.stringify(report));
}

/** A report that cannot be read is one of a rank that runs something else. */
export function decodeReport(bytes: Uint8Array): RankReport {
  try {
    return schema.parse(JSON.parse(Buffer.from(bytes).toString()));
  } catch (error) {
    const problem = `its report cannot be read (${withFullStop(asError(error).message)}). Run the same version of Lockstep on all ranks.`;
    return { host: 'an unknown host', problem, mayShareDevice: false };
  }
}

/** Why the world cannot be; the same words on every rank. */
export function findProblem(reports: readonly RankReport[]): Error | undefined {
  return unavailableError(reports) ?? sharedDeviceError(reports);
}

function unavailableError(reports: readonly RankReport[]): Error | undefined {
  const lines = reports.flatMap(({ problem, host }, rank) =>
    problem === undefined ? [] : [{ rank, line: `  rank ${rank} (${host}): ${problem}` }],
  );
  if (lines.length === 0) return undefined;
  const count = lines.length === 1 ? 'a rank' : `${lines.length} ranks`;
  const message = [
    `World.init: the backend 'nccl' cannot run, as ${count} of ${reports.length} cannot use a GPU:`,
    ...lines.map(({ line }) => line),
    "Every rank needs a GPU of its own, the CUDA driver and NCCL. The backend 'grpc' runs on CPUs.",
  ].join('\n');
  return new BackendUnavailableError(message, { ranks: lines.map(({ rank }) => rank) });
}

function sharedDeviceError(reports: readonly RankReport[]): Error | undefined {
  if (reports.every(({ mayShareDevice }) => mayShareDevice)) return undefined;
  const firstUser = new Map<string, number>();
  for (const [rank, { host, device }] of reports.entries()) {
    if (device === undefined) continue;
    const key = JSON.stringify([host, device.uuid]);
    const other = firstUser.get(key);
    if (other !== undefined) {
      return new InvalidArgumentError(
        `World.init: ranks ${other} and ${rank} were given the same device on ${host}: ${device.name} (uuid ${device.uuid}). Each rank needs one of its own: check LOCAL_RANK, options.localRank and CUDA_VISIBLE_DEVICES of both. (NCCL 2.30 and newer can share a device with NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks, as an experiment.)`,
        { ranks: [other, rank] },
      );
    }
    firstUser.set(key, rank);
  }
  return undefined;
}

/** Ranks with different versions of NCCL often fail to connect, or hang. */
export function versionWarning(reports: readonly RankReport[]): string | undefined {
  const byVersion = new Map<number, number[]>();
  for (const [rank, { ncclVersion }] of reports.entries()) {
    if (ncclVersion !== undefined) byVersion.set(ncclVersion, [...(byVersion.get(ncclVersion) ?? []), rank]);
  }
  if (byVersion.size < 2) return undefined;
  const versions = [...byVersion].map(
    ([version, ranks]) => `${ncclVersionText(version)} on rank${ranks.length === 1 ? '' : 's'} ${ranks.join(', ')}`,
  );
  return `ranks have loaded different versions of NCCL (${versions.join('; ')}). Install one version everywhere, or name the library with LOCKSTEP_NCCL_LIBRARY.`;
}
