/**
 * Which operators compute in which dtype, where `autocast` is on.
 *
 * [Note: autocast] Operators that are mostly products run in the low dtype; those that need the range or the digits, in
 * float32; those that combine several tensors, in the widest dtype among them; all others in the dtype that they are given.
 * Inputs are cast on the way in, by the differentiable cast, so gradients come back in the dtype of the parameter. The lists
 * are those of torch.autocast, of the operators that there are here (and `mean`). float64 is left alone.
 */
import { isFloatDType, type DType, type HalfDType } from '../core/dtype';
import { ContextKey } from '../core/context';
import type { Tensor } from './tensor';

const autocastKey = new ContextKey<HalfDType | undefined>(undefined);

type Target = 'low' | 'float32' | 'widest';

function entries(target: Target, ...operators: readonly string[]): [string, Target][] {
  return operators.map((name) => [name, target]);
}

const TARGETS: ReadonlyMap<string, Target> = new Map([
  ...entries('low', 'matmul', 'linear', 'conv2d'),
  ...entries('float32', 'softmax', 'logSoftmax', 'layerNorm', 'rmsNorm', 'crossEntropy', 'mseLoss'),
  ...entries('float32', 'exp', 'log', 'pow', 'sum', 'mean'),
  ...entries('widest', 'add', 'sub', 'mul', 'div', 'where', 'concat', 'stack'),
  ...entries('widest', 'eq', 'ne', 'gt', 'ge', 'lt', 'le'),
]);

/** The low dtype of this asynchronous context; undefined where autocast is off. */
export function autocastDType(): HalfDType | undefined {
  return autocastKey.get();
}

/** Run `fn`, and everything that it starts and awaits, with autocast to `dtype`, or off; returns what `fn` returns. */
export function withAutocast<R>(dtype: HalfDType | undefined, fn: () => R): R {
  return autocastKey.run(dtype, fn);
}

/**
 * The inputs as the operator `name` is to compute with them, see [Note: autocast]. Where autocast is off, the same array.
 * @internal
 */
export function autocastInputs<const I extends readonly (Tensor | undefined)[]>(name: string, inputs: I): I {
  const low = autocastKey.get();
  if (low === undefined) return inputs;
  const target = TARGETS.get(name);
  if (target === undefined) return inputs;
  const dtype = target === 'low' ? low : target === 'float32' ? 'float32' : widestOf(inputs);
  return inputs.map((input) =>
    input !== undefined && isCast(input, target) ? input.to(dtype) : input,
  ) as unknown as I;
}

function isCast({ dtype }: Tensor, target: Target): boolean {
  return isFloatDType(dtype) && (dtype !== 'float64' || target === 'widest');
}

/** The dtype that holds all floating point inputs: two different 16-bit formats meet in float32. */
function widestOf(inputs: readonly (Tensor | undefined)[]): DType {
  const dtypes = new Set(
    inputs.flatMap((input) => (input !== undefined && isFloatDType(input.dtype) ? input.dtype : [])),
  );
  if (dtypes.has('float64')) return 'float64';
  const [only] = dtypes;
  return dtypes.size === 1 && only !== undefined ? only : 'float32';
}
