/** A module's floating point state in another dtype. */
import { isDType, isFloatDType, type DType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { describeTensor } from '../tensor/describe';
import { noGrad } from '../tensor/gradient-mode';
import { convertBuffer } from '../tensor/operators/cast';
import { assertNoPendingCall } from '../tensor/pending-calls';
import { Storage } from '../tensor/storage';
import type { AnyModule } from './any-module';

/** See `Module.to`. */
export function convertModule(module: AnyModule, dtype: DType): void {
  const what = `${module.constructor.name}.to`;
  if (!isDType(dtype) || !isFloatDType(dtype)) {
    throw new InvalidArgumentError(`${what}: expected a floating point dtype, got ${String(dtype)}.`);
  }
  const parameters = module.parameters().filter((parameter) => isOther(parameter, dtype));
  const buffers = module.buffers().filter((buffer) => isOther(buffer, dtype));
  for (const tensor of [...parameters, ...buffers]) {
    assertNoPendingCall(tensor, what);
    if (tensor.gradientGate === undefined) continue;
    throw new InvalidArgumentError(
      `${what}: ${describeTensor(tensor)} belongs to a wrapped module, which has laid out its memory. Convert the module before it is wrapped.`,
    );
  }
  for (const parameter of parameters) {
    parameter.convert(dtype, what);
    const { grad } = parameter;
    if (grad !== undefined) parameter.grad = noGrad(() => grad.to(dtype));
  }
  for (const buffer of buffers) buffer.replaceStorage(Storage.of(convertBuffer(buffer.storage, dtype), 'other'), what);
}

function isOther(tensor: { readonly dtype: DType }, dtype: DType): boolean {
  return isFloatDType(tensor.dtype) && tensor.dtype !== dtype;
}
