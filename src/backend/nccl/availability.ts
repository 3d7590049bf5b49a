import { loadNccl } from './load-nccl';

/**
 * Whether `World.init({ backend: 'nccl' })` can run here: the package lockstep-nccl, the CUDA driver, NCCL 2.24.3 or newer,
 * and a device are there. Loads the libraries on the first call; never throws.
 */
export function isNcclAvailable(): boolean {
  return ncclUnavailableReason() === undefined;
}

/** What is missing for `isNcclAvailable()`, where it was looked for, and what to install; undefined if nothing is. */
export function ncclUnavailableReason(): string | undefined {
  const loaded = loadNccl();
  return 'reason' in loaded ? loaded.reason : undefined;
}
