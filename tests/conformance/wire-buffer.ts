import { allocateBuffer, bytesOf, dtypeOf, type DType, type HostBuffer } from '../../src/core/dtype';
import { bfloat16Value, float16Value } from '../helpers/rounding';

/** A buffer in a form that crosses processes with all its bits. */
export interface WireBuffer {
  readonly dtype: DType;
  readonly base64: string;
}

export function toWireBuffer(buffer: HostBuffer): WireBuffer {
  return { dtype: dtypeOf(buffer), base64: Buffer.from(bytesOf(buffer)).toString('base64') };
}

export function fromWireBuffer({ dtype, base64 }: WireBuffer): HostBuffer {
  const bytes = Buffer.from(base64, 'base64');
  const buffer = allocateBuffer(dtype, bytes.length / allocateBuffer(dtype, 0).BYTES_PER_ELEMENT);
  bytesOf(buffer).set(bytes);
  return buffer;
}

/** The numbers that a buffer stands for; those of 16-bit buffers by the definition of their format. */
export function valuesOf(wire: WireBuffer): (number | bigint)[] {
  const buffer = fromWireBuffer(wire);
  switch (wire.dtype) {
    case 'float16':
      return Array.from(buffer as Uint16Array, float16Value);
    case 'bfloat16':
      return Array.from(buffer as Uint16Array, bfloat16Value);
    default:
      return Array.from(buffer as ArrayLike<number | bigint>);
  }
}
