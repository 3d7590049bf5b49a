/** How the addon takes a launch of a kernel of native-nccl/kernels/kernels.cu. Nothing here touches a device. */
import { byteSize, type DType } from '../../core/dtype';
import type { Block, KernelArgument } from './addon';

/** What `launch` of the addon takes, after the device. */
export interface KernelLaunch {
  readonly kernel: string;
  readonly gridSize: number;
  readonly blockSize: number;
  readonly args: readonly KernelArgument[];
}

/** Elements in device memory. */
export interface DeviceElements {
  readonly block: Block;
  readonly byteOffset: number;
  readonly dtype: DType;
  readonly length: number;
}

export const BLOCK_SIZE = 256;

/** As many blocks as any GPU of today runs at once, and some; each thread goes on to further elements. */
const MAX_GRID_SIZE = 2048;

/** Blocks for a kernel that takes `length` elements, or one element a block. The driver refuses a grid of none. */
export function gridSizeFor(length: number, elementsPerBlock = BLOCK_SIZE): number {
  return Math.min(Math.max(Math.ceil(length / elementsPerBlock), 1), MAX_GRID_SIZE);
}

/** A launch with one thread an element, up to the largest grid. */
export function elementwise(kernel: string, length: number, args: readonly KernelArgument[]): KernelLaunch {
  return { kernel, gridSize: gridSizeFor(length), blockSize: BLOCK_SIZE, args };
}

export function read(elements: DeviceElements): KernelArgument {
  return pointer(elements, false);
}

export function written(elements: DeviceElements): KernelArgument {
  return pointer(elements, true);
}

/** A pointer that may be null. */
export function readIfGiven(elements: DeviceElements | undefined): KernelArgument {
  return elements === undefined ? { uint64: 0 } : read(elements);
}

/** A pointer that may be null. */
export function writtenIfGiven(elements: DeviceElements | undefined): KernelArgument {
  return elements === undefined ? { uint64: 0 } : written(elements);
}

function pointer({ block, byteOffset, dtype, length }: DeviceElements, isWritten: boolean): KernelArgument {
  return { block, byteOffset, byteLength: length * byteSize(dtype), isWritten };
}
