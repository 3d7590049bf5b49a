/** What the addon throws, in Lockstep's errors: what failed, where, and what to do. */
import {
  CollectiveTimeoutError,
  InternalError,
  InvalidArgumentError,
  NativeError,
  asError,
  isLockstepError,
  type ErrorContext,
} from '../../core/errors';
import { withFullStop } from '../../core/full-stop';
import type { NativeFailure, NativeFailureCode } from './addon';
import type { OpenDevice } from './open-device';

const CODES: Readonly<Record<NativeFailureCode, true>> = {
  UNAVAILABLE: true,
  OUT_OF_MEMORY: true,
  CUDA: true,
  NCCL: true,
  TIMEOUT: true,
  ABORTED: true,
  CLOSED: true,
};

export function isNativeFailure(thrown: unknown): thrown is NativeFailure {
  const { code } = (thrown ?? {}) as { readonly code?: unknown };
  return typeof code === 'string' && Object.hasOwn(CODES, code);
}

/**
 * @param what failed, as 'allReduce(float32[4], Sum), sequence 3 of group world, on rank 1'
 * @param device for what is said about memory
 */
export function nativeError(thrown: unknown, what: string, device: OpenDevice, at: ErrorContext = {}): Error {
  const context = { ...at, cause: thrown };
  if (isLockstepError(thrown, 'LOCKSTEP_INVALID_ARGUMENT')) {
    return new InvalidArgumentError(`${what}: ${thrown.message}`, context);
  }
  if (!isNativeFailure(thrown)) {
    const { name, message } = asError(thrown);
    return new InternalError(`${what}: the native addon refused the call: ${name}: ${message}`, context);
  }
  const message = `${what}, on ${device.name}: ${describeFailure(thrown)} ${adviceFor(thrown, device, at.group !== undefined)}`;
  if (thrown.code === 'TIMEOUT') return new CollectiveTimeoutError(message, context);
  return new NativeError(message, thrown.isDeviceLost === true ? 'process' : 'group', context);
}

/** What the library said. */
export function describeFailure({ message, call, detail }: NativeFailure): string {
  const said = call === undefined || message.includes(call) ? message : `${call}: ${message}`;
  const more =
    detail === undefined || detail === '' || said.includes(detail) ? '' : ` NCCL says: ${withFullStop(detail)}`;
  return `${withFullStop(said)}${more}`;
}

/** ncclResult_t: ncclUnhandledCudaError is 1, ncclSystemError 2, ncclInvalidUsage 5, ncclRemoteError 6. */
const [UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INVALID_USAGE, REMOTE_ERROR] = [1, 2, 5, 6];

/**
 * Another rank may be behind it: one that is gone or, until all ranks have announced the call, one whose call does not fit, for
 * which NCCL has no word of its own. Or another call is, whose failure says what happened.
 */
export function isPerhapsOfAnotherRank(thrown: unknown, isAnnounced: boolean): boolean {
  if (!isNativeFailure(thrown) || thrown.isDeviceLost === true) return false;
  if (thrown.code === 'ABORTED') return true;
  if (thrown.code !== 'NCCL' || thrown.result === UNHANDLED_CUDA_ERROR) return false;
  return !isAnnounced || thrown.result === REMOTE_ERROR || thrown.result === SYSTEM_ERROR;
}

const BUILD_ANOTHER = 'The group cannot be used any more; build another.';

/** NCCL has lost the connection to another rank, which knows why. */
export function isOfAnotherRank(thrown: unknown): boolean {
  return isNativeFailure(thrown) && thrown.code === 'NCCL' && thrown.result === REMOTE_ERROR;
}

/** How long a failure of NCCL waits for the control plane to say which rank is behind it. */
export const EXPLANATION_MS = 1000;

function adviceFor(failure: NativeFailure, device: OpenDevice, isOfGroup: boolean): string {
  if (failure.isDeviceLost === true) {
    return 'After such an error this process cannot use the device any more: save what is in host memory, and start the process again.';
  }
  switch (failure.code) {
    case 'OUT_OF_MEMORY':
      return `${memoryInUse(device)} Dispose of device buffers that are no longer needed, shard more (a higher ZeRO stage, more ranks), or use smaller buckets or batches; nvidia-smi shows whether other processes hold the rest.`;
    case 'NCCL':
      return ncclAdvice(failure.result);
    case 'TIMEOUT':
      return isOfGroup
        ? `If a rank is only slow, pass a larger timeoutMs. ${BUILD_ANOTHER}`
        : 'If a rank or the device is only slow, pass a larger timeoutMs to World.init.';
    case 'ABORTED':
      return isOfGroup ? BUILD_ANOTHER : 'It is a consequence of another failure.';
    case 'CLOSED':
      return 'Keep the world open until its last call is done.';
    default:
      return 'Run with LOCKSTEP_LOG=info to see the device and library of each rank.';
  }
}

function ncclAdvice(result: number | undefined): string {
  const debug = 'Run once with NCCL_DEBUG=WARN to see what NCCL found.';
  switch (result) {
    case SYSTEM_ERROR:
      return `${debug} Often /dev/shm is too small (in a container: --shm-size=1g), or NCCL chose a network interface that leads nowhere (set NCCL_SOCKET_IFNAME).`;
    case REMOTE_ERROR:
      return `${debug} Another rank's process or network connection is gone; look at that rank first.`;
    case INVALID_USAGE:
      return `${debug} Two ranks may have been given the same device, or ranks use different versions of NCCL.`;
    case UNHANDLED_CUDA_ERROR:
      return `${debug} The driver may be too old for this NCCL.`;
    default:
      return debug;
  }
}

function memoryInUse({ addon, handle }: OpenDevice): string {
  const { usedBytes, reservedBytes, freeBytes, totalBytes } = addon.stats(handle);
  return `Of ${totalBytes} bytes, ${freeBytes} are free; this process has taken ${reservedBytes}, of which ${usedBytes} are in use.`;
}
