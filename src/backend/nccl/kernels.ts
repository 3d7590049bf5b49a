/** The arguments of the element-wise kernels and of the sums, see native-nccl/kernels/kernels.cu. */
import { byteSize } from '../../core/dtype';
import { toBFloat16Bits, toFloat16Bits } from '../../core/half';
import { invariant } from '../../core/invariant';
import { BLOCK_SIZE, elementwise, gridSizeFor, read, written } from './kernel-launch';
import type { DeviceElements, KernelLaunch } from './kernel-launch';

/** The dtypes that kernels compute on. */
const KERNEL_DTYPES: readonly string[] = ['float32', 'float16', 'bfloat16'];

/** Blocks of a sum; each leaves one partial sum. A constant, so that the order of additions is the same on all GPUs. */
const MAX_PARTIALS = 1024;

/** target = source, in another of the dtypes float32, float16 and bfloat16; rounded as src/core/half.ts does. */
export function castKernel(source: DeviceElements, target: DeviceElements): KernelLaunch {
  checkFloats(source, target);
  invariant(source.dtype !== target.dtype, `a cast from ${source.dtype} to itself is a copy`);
  const args = [read(source), written(target), { uint64: source.length }];
  return elementwise(`cast_${source.dtype}_${target.dtype}`, source.length, args);
}

/** values *= factor. */
export function scaleKernel(values: DeviceElements, factor: number): KernelLaunch {
  checkFloats(values);
  const args = [written(values), { uint64: values.length }, { float32: factor }];
  return elementwise(`scale_${values.dtype}`, values.length, args);
}

/**
 * target = factor * source, and `overflow` is set to 1 where a result is NaN or infinite; it is never set to 0.
 * @param target float32; may be `source`, if that is float32 too
 * @param overflow one int32
 */
export function unscaleKernel(
  source: DeviceElements,
  target: DeviceElements,
  factor: number,
  overflow: DeviceElements,
): KernelLaunch {
  checkFloats(source, target);
  invariant(target.dtype === 'float32', `unscaled gradients are float32, got ${target.dtype}`);
  checkElements(overflow, 'int32', 1);
  const args = [read(source), written(target), { uint64: source.length }, { float32: factor }, written(overflow)];
  return elementwise(`unscale_${source.dtype}`, source.length, args);
}

/** target += factor * source, of one dtype; computed in float32. */
export function addScaledKernel(target: DeviceElements, source: DeviceElements, factor = 1): KernelLaunch {
  checkFloats(target, source);
  checkElements(source, target.dtype, target.length);
  const args = [written(target), read(source), { uint64: target.length }, { float32: factor }];
  return elementwise(`add_scaled_${target.dtype}`, target.length, args);
}

/** Set all elements, of a float dtype that kernels compute on or of int32, to `value`. */
export function fillKernel(target: DeviceElements, value: number): KernelLaunch {
  const args = [written(target), { uint64: target.length }, { int32: bitsOf(target, value) }];
  return elementwise(`fill_${8 * byteSize(target.dtype)}`, target.length, args);
}

function bitsOf({ dtype }: DeviceElements, value: number): number {
  switch (dtype) {
    case 'float32':
      return new Int32Array(Float32Array.of(value).buffer)[0] as number;
    case 'int32':
      return value | 0;
    case 'float16':
      return toFloat16Bits(value);
    case 'bfloat16':
      return toBFloat16Bits(value);
    default:
      invariant(false, `no kernel fills ${dtype}`);
  }
}

/** How many partial sums `sumSquaresKernel` leaves for so many elements. */
export function partialCount(length: number): number {
  return Math.min(gridSizeFor(length), MAX_PARTIALS);
}

/** Sums of squares, of which `sumPartialsKernel` makes one. @param partials float64, `partialCount(values.length)` of them */
export function sumSquaresKernel(values: DeviceElements, partials: DeviceElements): KernelLaunch {
  checkFloats(values);
  checkElements(partials, 'float64', partialCount(values.length));
  return {
    kernel: `sum_squares_${values.dtype}`,
    gridSize: partials.length,
    blockSize: BLOCK_SIZE,
    args: [read(values), { uint64: values.length }, written(partials)],
  };
}

/** @param partials float64; of one sum or of several, one after another @param total one float64 */
export function sumPartialsKernel(partials: DeviceElements, total: DeviceElements): KernelLaunch {
  checkElements(partials, 'float64', partials.length);
  checkElements(total, 'float64', 1);
  const args = [read(partials), { uint64: partials.length }, written(total)];
  return { kernel: 'sum_partials', gridSize: 1, blockSize: BLOCK_SIZE, args };
}

/** All of one length, each of a dtype that kernels compute on. */
function checkFloats(first: DeviceElements, ...others: readonly DeviceElements[]): void {
  for (const { dtype, length } of [first, ...others]) {
    invariant(KERNEL_DTYPES.includes(dtype), `no kernel computes on ${dtype}`);
    invariant(length === first.length, `a kernel on ${first.length} elements was given ${length}`);
  }
}

function checkElements(elements: DeviceElements, dtype: string, length: number): void {
  const isRight = elements.dtype === dtype && elements.length === length;
  invariant(isRight, `expected ${length} ${dtype} on the device, got ${elements.length} ${elements.dtype}`);
}
