/** All checks, in the order in which they are made: what the later ones rest on comes first. */
import type { CheckGroup } from './check';
import { allocatorChecks } from './checks/allocator';
import { backendChecks } from './checks/backend';
import { communicatorChecks } from './checks/communicator';
import { deviceChecks } from './checks/device';
import { errorChecks } from './checks/errors';
import { kernelChecks } from './checks/kernels';
import { optimizerChecks } from './checks/optimizer';
import { timingChecks } from './checks/timings';
import { trainingChecks } from './checks/training';
import { twoRankChecks } from './checks/two-ranks';

export const CHECK_GROUPS: readonly CheckGroup[] = [
  { name: 'device', checks: deviceChecks },
  { name: 'communicator', checks: communicatorChecks },
  { name: 'backend', checks: backendChecks },
  { name: 'kernels', checks: kernelChecks },
  { name: 'allocator', checks: allocatorChecks },
  { name: 'optimizer', checks: optimizerChecks },
  { name: 'training', checks: trainingChecks },
  { name: 'errors', checks: errorChecks },
  { name: 'timings', checks: timingChecks },
  { name: 'two ranks', checks: twoRankChecks },
];

export function findGroup(name: string): CheckGroup {
  const group = CHECK_GROUPS.find((each) => each.name === name);
  if (group === undefined) throw new Error(`there is no group of checks '${name}'`);
  return group;
}
