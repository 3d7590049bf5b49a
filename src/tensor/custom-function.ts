/** Operators whose backward the caller writes. */
import { isFloatDType, type DType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { autocastDType, withAutocast } from './autocast-mode';
import { isGradEnabled, noGrad, showToObserver } from './gradient-mode';
import { GraphNode, type NodeBackward } from './graph';
import { zerosValue } from './operators/floats';
import { formatShape, isSameShape, type Shape } from './shape';
import { recordNode, Tensor } from './tensor';
import { gradientValue } from './tensor-state';
import { collectMade } from './tidy';

/** What backward may give: one gradient for each input, undefined for none; the tensor itself if there is one input. */
export type InputGradients = Tensor | undefined | readonly (Tensor | undefined)[];

export interface CustomFunction<In extends readonly Tensor[], Out extends Tensor | readonly Tensor[]> {
  /** Computes the outputs. Nothing is recorded inside. */
  readonly forward: (...inputs: In) => Out;
  /**
   * Computes the gradients of the inputs from those of the outputs (zeros for an output that nothing came back to). May
   * be async; backward() waits for it. Nothing is recorded inside; a nested backward() under `enableGrad` is part of the
   * outermost one. Autocast is on or off as it was in forward; then gradients are cast to the dtypes of the inputs. Give
   * back new tensors, or those that came in; leave both alone afterwards.
   */
  readonly backward: (...gradients: Tensor[]) => InputGradients | Promise<InputGradients>;
  /**
   * Leaves other than the inputs that a nested backward() inside `backward` will reach. They count as used until then, so
   * that their gradient hooks run after it. Asked once, after forward.
   */
  readonly hiddenLeaves?: (() => readonly Tensor[]) | undefined;
  /** For messages; default 'customFunction'. */
  readonly name?: string | undefined;
}

type Outputs<Out> = Out extends Tensor ? Tensor : Tensor[];

/**
 * An operator with a backward of its own. Pass a function that makes the two where they share what a call saves:
 *
 *     const square = customFunction(() => {
 *       let input: Tensor;
 *       return {
 *         forward: (x: Tensor) => (input = x).mul(x),
 *         backward: (gradient) => gradient.mul(input).mul(2),
 *       };
 *     });
 */
export function customFunction<In extends readonly Tensor[], Out extends Tensor | readonly Tensor[]>(
  definition: CustomFunction<In, Out> | (() => CustomFunction<In, Out>),
): (...inputs: In) => Outputs<Out> {
  return (...inputs) => {
    const call = typeof definition === 'function' ? definition() : definition;
    const result = noGrad(() => call.forward(...inputs));
    const isSingle = result instanceof Tensor;
    const made: readonly Tensor[] = isSingle ? [result] : result;
    const outputs = record(call, inputs, made);
    return (isSingle ? outputs[0] : outputs) as Outputs<Out>;
  };
}

function record<In extends readonly Tensor[], Out extends Tensor | readonly Tensor[]>(
  call: CustomFunction<In, Out>,
  inputs: In,
  made: readonly Tensor[],
): Tensor[] {
  const sources = inputs.map((input) => input.source);
  const hidden = (call.hiddenLeaves?.() ?? []).filter((leaf) => leaf.requiresGrad);
  const hiddenLeaves = hidden.map((leaf) => leaf.leaf);
  const needsGradient = hiddenLeaves.length > 0 || sources.some((source) => source !== undefined);
  if (!isGradEnabled() || !needsGradient) {
    showToObserver([...inputs, ...hidden]);
    return made.map((tensor) => (tensor.requiresGrad ? tensor.detach() : tensor));
  }
  const name = call.name ?? 'customFunction';
  const node = new GraphNode(
    name,
    sources,
    [],
    backwardOf(name, call.backward, inputs.map(formOf), made.map(formOf)),
    hiddenLeaves,
  );
  const outputs = recordNode(node, made);
  for (const tensor of made) if (!inputs.includes(tensor)) tensor.lease.release(); // the outputs hold the memory now
  return outputs;
}

interface TensorForm {
  readonly shape: Shape;
  readonly dtype: DType;
}

function formOf({ shape, dtype }: Tensor): TensorForm {
  return { shape, dtype };
}

function backwardOf(
  name: string,
  backward: (...gradients: Tensor[]) => InputGradients | Promise<InputGradients>,
  inputs: readonly TensorForm[],
  outputForms: readonly TensorForm[],
): NodeBackward {
  const autocast = autocastDType();
  return async (gradients, needs) => {
    const incoming = outputForms.map(
      ({ dtype, shape }, index) => new Tensor(gradients[index] ?? zerosValue(dtype, shape)),
    );
    try {
      const { result: returned, made } = await collectMade(async () => {
        const result = await withAutocast(autocast, async () => backward(...incoming));
        const list = result instanceof Tensor || result === undefined ? [result] : result;
        return autocast === undefined ? list : list.map((gradient, index) => castLike(gradient, inputs[index]));
      });
      checkGradients(name, returned, inputs);
      return returned.map((gradient, index) => {
        if (gradient === undefined || needs[index] !== true) return undefined;
        const value = gradientValue(gradient);
        value.storage.allocation.hold();
        if (made.has(gradient)) gradient.lease.release(); // it was made for us: the engine may use its memory
        return value;
      });
    } finally {
      for (const gradient of incoming) gradient.lease.release();
    }
  };
}

/** What autocast has made of a gradient, in the dtype of its input. */
function castLike(gradient: Tensor | undefined, input: TensorForm | undefined): Tensor | undefined {
  if (gradient === undefined || input === undefined || !isFloatDType(gradient.dtype)) return gradient;
  return gradient.to(input.dtype);
}

function checkGradients(name: string, gradients: readonly (Tensor | undefined)[], inputs: readonly TensorForm[]): void {
  if (gradients.length !== inputs.length) {
    throw new InvalidArgumentError(
      `${name}: backward gave ${gradients.length} gradients for ${inputs.length} inputs. Give one for each, undefined for none.`,
    );
  }
  gradients.forEach((gradient, index) => {
    const { shape, dtype } = inputs[index] as TensorForm;
    if (gradient === undefined || (isSameShape(gradient.shape, shape) && gradient.dtype === dtype)) return;
    throw new InvalidArgumentError(
      `${name}: backward gave a ${gradient.dtype} gradient of shape ${formatShape(gradient.shape)} for input ${index}, which is ${dtype} ${formatShape(shape)}.`,
    );
  });
}
