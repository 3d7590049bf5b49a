/** Memory on an accelerator, as collectives and strategies see it; device backends make it. */
import type { DType } from './dtype';

/** Marks a device buffer, across realms and copies of the package. */
export const DEVICE_BUFFER_BRAND = Symbol.for('lockstep.device-buffer');

/**
 * Elements of one dtype in device memory. There is no pointer in JavaScript. Calls in flight hold the memory, so it may be
 * disposed of at any time; the memory is used again when nothing needs it any more.
 */
export interface DeviceBuffer {
  readonly [DEVICE_BUFFER_BRAND]: true;
  /** As 'cuda:0'. */
  readonly device: string;
  readonly dtype: DType;
  /** In elements. */
  readonly length: number;
  readonly byteLength: number;
  /** From the start of the memory that this buffer is a view of. */
  readonly byteOffset: number;
  /** Identity of that memory: buffers share memory only if they have the same. */
  readonly memory: object;
  readonly isDisposed: boolean;
  /** `length` elements from element `start`: the same memory, which lives until it and all its views are disposed of. */
  view(start: number, length: number): DeviceBuffer;
  /** Give the memory back. Idempotent. */
  dispose(): void;
  [Symbol.dispose](): void;
}

export function isDeviceBuffer(value: unknown): value is DeviceBuffer {
  return typeof value === 'object' && value !== null && DEVICE_BUFFER_BRAND in value;
}
