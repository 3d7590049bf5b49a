/**
 * The native addon, as its package describes itself. Types and the loading only: what is wrong with a machine that cannot
 * use it is said in load-nccl.ts.
 */
import type * as addon from 'lockstep-nccl';

export type NcclAddon = typeof addon;
export type {
  Block,
  Communicator,
  Device,
  DeviceInfo,
  DeviceStats,
  FlightRecord,
  KernelArgument,
  LibraryPaths,
  LibraryProbe,
  NativeFailure,
  NativeFailureCode,
  NcclDType,
  NcclOperation,
  NcclReduceOp,
  Probe,
} from 'lockstep-nccl';

/** The package that holds the addon: an optional peer. */
export const ADDON_PACKAGE = 'lockstep-nccl';
/** Of the addon's functions, as this library calls them. */
export const INTERFACE_VERSION = 2;

/**
 * By require, when somebody asks: nobody pays for a backend that is not used, and nothing native runs at import.
 *
 * @throws Error of require where the package is not installed, of the package where it has no binary for this platform
 */
export function requireAddon(): NcclAddon {
  // eslint-disable-next-line @typescript-eslint/no-require-imports -- see above; a dynamic import() would pass by Jest
  return require('lockstep-nccl') as NcclAddon;
}
