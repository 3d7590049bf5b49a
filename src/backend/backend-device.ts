/** The accelerator of a rank, as strategies reach it through their backend. */
import type { DeviceBuffer } from '../core/device-buffer';
import type { DType, HostBuffer } from '../core/dtype';
import type { FlatUpdate } from '../core/flat-update';

/**
 * Calls take effect in the order in which they are made. An error of `update` or `copy` comes with the next promise.
 *
 * Errors of all: NativeError (the device or its memory; the message says what failed), ClosedError after the backend was
 * closed, InvalidArgumentError for a buffer of another device, a disposed one, or lengths and dtypes that do not fit.
 */
export interface BackendDevice {
  /** As 'cuda:0'. */
  readonly name: string;
  /** Contents are undefined until written. @throws NativeError where there is no memory left; the message says how much is in use */
  allocate(dtype: DType, length: number): DeviceBuffer;
  /** Copy all elements, to the device. Leave `source` alone until the promise settles. */
  upload(source: HostBuffer, target: DeviceBuffer): Promise<void>;
  /** Copy all elements, from the device. */
  download(source: DeviceBuffer, target: HostBuffer): Promise<void>;
  /** Copy all elements, on the device; not between parts of one memory that overlap. */
  copy(source: DeviceBuffer, target: DeviceBuffer): void;
  /** One step of an optimizer on a run of elements, by a fused kernel. Within `FLAT_UPDATE_TOLERANCE` of the optimizer's own. */
  update(update: FlatUpdate, target: FlatUpdateTarget): void;
}

/** No two of them share memory. */
export interface FlatUpdateTarget {
  /** float32, float16 or bfloat16; changed in place. */
  readonly parameter: DeviceBuffer;
  /** float32, float16 or bfloat16; as long. */
  readonly gradient: DeviceBuffer;
  /** float32 copy of a 16-bit parameter, changed in place; the parameter is that, rounded. */
  readonly master?: DeviceBuffer | undefined;
  /** float32, by the rule's names, as long; changed in place. */
  readonly state: Readonly<Record<string, DeviceBuffer>>;
}
