/** The arguments of the fused optimizer kernels, see native-nccl/kernels/kernels.cu. */
import { isHalfDType } from '../../core/dtype';
import type { AdamUpdate, FlatUpdate, SGDUpdate } from '../../core/flat-update';
import { invariant } from '../../core/invariant';
import { elementwise, read, readIfGiven, written, writtenIfGiven } from './kernel-launch';
import type { DeviceElements, KernelLaunch } from './kernel-launch';

/** As FlatUpdateTarget of src/backend/backend-device.ts, in device memory. */
export interface KernelUpdateTarget {
  /** float32, float16 or bfloat16. */
  readonly parameter: DeviceElements;
  /** float32, float16 or bfloat16. */
  readonly gradient: DeviceElements;
  /** float32, of a 16-bit parameter; without one each step is rounded to 16 bits. */
  readonly master?: DeviceElements | undefined;
  /** float32, by the names of the optimizer. */
  readonly state: Readonly<Record<string, DeviceElements>>;
  /** One int32: if it is not 0 when the launch runs, nothing is changed. */
  readonly skip?: DeviceElements | undefined;
}

export function updateKernel(update: FlatUpdate, target: KernelUpdateTarget): KernelLaunch {
  return update.kind === 'adam' ? adamKernel(update, target) : sgdKernel(update, target);
}

/** `state`: expAvg, expAvgSq. What is close to 1 is subtracted from 1 here, in float64, before float32 loses its digits. */
export function adamKernel(update: AdamUpdate, target: KernelUpdateTarget): KernelLaunch {
  const { parameter, gradient, master, skip } = check(target);
  const args = [
    written(parameter),
    read(gradient),
    writtenIfGiven(master),
    written(stateOf(target, 'expAvg')),
    written(stateOf(target, 'expAvgSq')),
    { uint64: parameter.length },
    readIfGiven(skip),
    { float32: update.gradientScale },
    { float32: update.beta1 },
    { float32: 1 - update.beta1 },
    { float32: update.beta2 },
    { float32: 1 - update.beta2 },
    { float32: update.eps },
    { float32: update.penalty },
    { float32: 1 - update.keep },
    { float32: update.stepSize },
    { float32: update.rootScale },
  ];
  return elementwise(`adam_${parameter.dtype}_${gradient.dtype}`, parameter.length, args);
}

/** `state`: momentumBuffer, where there is a momentum. */
export function sgdKernel(update: SGDUpdate, target: KernelUpdateTarget): KernelLaunch {
  const { parameter, gradient, master, skip } = check(target);
  const args = [
    written(parameter),
    read(gradient),
    writtenIfGiven(master),
    writtenIfGiven(update.momentum === 0 ? undefined : stateOf(target, 'momentumBuffer')),
    { uint64: parameter.length },
    readIfGiven(skip),
    { float32: update.gradientScale },
    { float32: update.lr },
    { float32: update.momentum },
    { float32: update.taken },
    { float32: update.weightDecay },
    { int32: update.nesterov ? 1 : 0 },
  ];
  return elementwise(`sgd_${parameter.dtype}_${gradient.dtype}`, parameter.length, args);
}

function stateOf({ state, parameter }: KernelUpdateTarget, name: string): DeviceElements {
  const elements = state[name];
  invariant(elements !== undefined, `an update on the device needs the state ${name}`);
  checkFloat32(elements, parameter.length, name);
  return elements;
}

function check(target: KernelUpdateTarget): KernelUpdateTarget {
  const { parameter, gradient, master, skip } = target;
  for (const { dtype } of [parameter, gradient]) {
    invariant(dtype === 'float32' || isHalfDType(dtype), `no kernel updates ${parameter.dtype} by ${gradient.dtype}`);
  }
  invariant(gradient.length === parameter.length, `${gradient.length} gradients for ${parameter.length} parameters`);
  if (master !== undefined) {
    invariant(isHalfDType(parameter.dtype), `a master of ${parameter.dtype} parameters`);
    checkFloat32(master, parameter.length, 'master');
  }
  if (skip !== undefined) invariant(skip.dtype === 'int32' && skip.length === 1, 'the skip flag is one int32');
  return target;
}

function checkFloat32({ dtype, length }: DeviceElements, expected: number, name: string): void {
  const isRight = dtype === 'float32' && length === expected;
  invariant(isRight, `${name}: expected ${expected} float32 on the device, got ${length} ${dtype}`);
}
