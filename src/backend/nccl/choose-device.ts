/** Which device is this rank's. */

/** The devices that this process sees, and this rank's place among the ranks of its machine. */
export interface DeviceChoice {
  readonly localRank: number;
  readonly deviceCount: number;
  /** Value of CUDA_VISIBLE_DEVICES, for the message. */
  readonly visibleDevices: string | undefined;
}

/**
 * One rank, one device, by local rank. Where one device alone is visible, whoever started this rank chose it for it: two ranks
 * that chose the same are found out afterwards.
 */
export function chooseDevice({
  localRank,
  deviceCount,
  visibleDevices,
}: DeviceChoice): { readonly index: number } | { readonly reason: string } {
  if (localRank < deviceCount) return { index: localRank };
  if (deviceCount === 1) return { index: 0 };
  const visible = visibleDevices === undefined ? 'is not set' : `is '${visibleDevices}'`;
  return {
    reason: `there is no device for local rank ${localRank}: ${deviceCount} devices are visible (CUDA_VISIBLE_DEVICES ${visible}). Start at most ${deviceCount} ranks on this machine, or make more devices visible.`,
  };
}
