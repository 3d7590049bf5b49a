/** Copies between host memory, of whatever kind, and device memory. */
import { InvalidArgumentError } from '../../core/errors';
import { isDetached } from '../../core/dtype';
import type { NcclAddon } from './addon';
import type { Operand } from './operations';

interface HostCopy {
  readonly addon: NcclAddon;
  readonly place: Operand;
  readonly bytes: Uint8Array;
  readonly timeoutMs: number;
}

/** @throws InvalidArgumentError where the host memory is gone, else as the addon does */
export async function uploadBytes({ addon, place, bytes, timeoutMs }: HostCopy): Promise<void> {
  refuseDetached(bytes);
  await addon.upload(place.block, place.byteOffset, isFixed(bytes) ? bytes : bytes.slice(), timeoutMs);
}

/**
 * Nothing writes to `bytes` any more when the promise has settled.
 * @throws InvalidArgumentError where the host memory is gone, else as the addon does
 */
export async function downloadBytes({ addon, place, bytes, timeoutMs }: HostCopy): Promise<void> {
  refuseDetached(bytes);
  const target = isFixed(bytes) ? bytes : new Uint8Array(bytes.byteLength);
  await addon.download(place.block, place.byteOffset, target, timeoutMs);
  if (target !== bytes) bytes.set(target);
}

/** Buffers are checked when a call is made; this is later. */
function refuseDetached(bytes: Uint8Array): void {
  if (!isDetached(bytes)) return;
  throw new InvalidArgumentError(
    'a buffer was detached while the call was in flight: its memory was transferred to a worker or by structuredClone. Leave buffers alone until the call has settled.',
  );
}

/** The addon works on memory from another thread: it takes none that is shared, or that can be resized meanwhile. */
function isFixed({ buffer }: Uint8Array): boolean {
  const isShared = Object.prototype.toString.call(buffer) === '[object SharedArrayBuffer]';
  return !isShared && (buffer as { readonly resizable?: boolean }).resizable !== true;
}
