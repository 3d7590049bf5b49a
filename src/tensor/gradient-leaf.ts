/** What autograd keeps about a leaf: a tensor that was not computed, and whose gradient is kept. */
import { copyBuffer, isFloatDType, isHalfDType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { BackwardSession } from './backward-session';
import { describeTensor } from './describe';
import { addInto } from './operators/accumulate';
import { formatShape, isSameShape } from './shape';
import { Storage } from './storage';
import type { Tensor } from './tensor';
import { keep } from './tidy';
import type { Value } from './value';

/**
 * Set on a leaf by a strategy that synchronises its gradient. The engine tells it when a backward begins; optimizers and
 * clipping await `settle` before they read the gradient.
 */
export interface GradientGate {
  /**
   * An outermost backward that reaches leaves of this gate begins; no gradient is written before this settles. Called once
   * for each, within its context, so that `afterBackward` may be called. A rejection rejects the backward.
   */
  prepare?(): void | Promise<void>;
  /** All leaves that a backward, outermost or nested, is about to reach; throws to refuse it. */
  inspect?(leaves: readonly Tensor[]): void;
  /**
   * Wait for a gradient in flight.
   * @param operation what is about to read the gradient, for messages: 'step', 'clipGradNorm'
   * @throws if the gradient was never synchronised
   */
  settle(operation: string): Promise<void>;
  /** `.grad` of a leaf was set to undefined: what is kept of its gradient elsewhere is to go too. */
  dropped?(leaf: Tensor): void;
}

export type GradientHook = (leaf: Tensor) => void;

export class GradientLeaf {
  readonly tensor: Tensor;
  gradientGate: GradientGate | undefined;
  /** The backward that is writing to this leaf. */
  pendingBackward: BackwardSession | undefined;
  /** The call that is changing this leaf, such as 'optimizer.step()'. */
  pendingCall: string | undefined;
  readonly #hooks = new Set<{ readonly run: GradientHook }>();
  readonly #createTensor: (value: Value) => Tensor;
  #grad: Tensor | undefined;
  #gradientBuffer: Tensor | undefined;

  constructor(tensor: Tensor, createTensor: (value: Value) => Tensor) {
    this.tensor = tensor;
    this.#createTensor = createTensor;
  }

  /** The gradient; one that was disposed of counts as none. */
  get grad(): Tensor | undefined {
    return this.#grad?.isDisposed === true ? undefined : this.#grad;
  }

  /** Replace the gradient, which outlives every tidy() from here on. The account forgets the old one at once, unless it is the gradient buffer. */
  set grad(gradient: Tensor | undefined) {
    this.#replaceGradient(gradient);
    if (gradient === undefined) this.gradientGate?.dropped?.(this.tensor);
  }

  #replaceGradient(gradient: Tensor | undefined): void {
    const previous = this.#grad;
    if (gradient === previous) return;
    if (gradient !== undefined) this.#checkForm('grad', gradient);
    this.#grad = gradient;
    if (previous !== undefined && previous !== this.gradientBuffer) previous.lease.release();
    if (gradient === undefined || gradient === this.gradientBuffer) return;
    keep(gradient);
    gradient.lease.hold();
    if (gradient.storage.allocation.holders === 1) gradient.storage.allocation.moveTo('gradients');
  }

  get gradientBuffer(): Tensor | undefined {
    return this.#gradientBuffer;
  }

  set gradientBuffer(buffer: Tensor | undefined) {
    if (buffer !== undefined) this.#checkForm('gradientBuffer', buffer);
    this.#gradientBuffer = buffer;
  }

  /** A gradient has its leaf's shape; its dtype may be a wider one, so that 16-bit gradients can be summed in float32. */
  #checkForm(what: string, { shape, dtype }: Tensor): void {
    if (isSameShape(shape, this.tensor.shape) && isFloatDType(dtype)) return;
    throw new InvalidArgumentError(
      `${what}: expected a floating point tensor of shape ${formatShape(this.tensor.shape)} for ${describeTensor(this.tensor)}, got ${dtype} ${formatShape(shape)}.`,
    );
  }

  addHook(run: GradientHook): () => void {
    const hook = { run };
    this.#hooks.add(hook);
    return () => void this.#hooks.delete(hook);
  }

  runHooks(): void {
    for (const hook of [...this.#hooks]) hook.run(this.tensor);
  }

  /** Add `gradient` to `.grad`. The caller's hold on its memory passes to the leaf. */
  accumulate({ storage }: Value): void {
    const present = this.grad;
    if (present !== undefined && isHalfDType(present.dtype)) this.#widen(present, storage);
    else if (present !== undefined) addInto(present.storage, storage);
    else if (this.gradientBuffer !== undefined) {
      writeGradient(this.gradientBuffer.storage, storage);
      this.#grad = this.gradientBuffer;
    } else if (storage.allocation.holders > 1) {
      const copy = Storage.allocate(this.tensor.dtype, storage.length, 'gradients');
      writeGradient(copy, storage);
      this.grad = this.#createTensor({ storage: copy, shape: this.tensor.shape });
    } else {
      storage.allocation.release(); // the last hold was ours: the memory becomes the gradient's
      this.grad = this.#createTensor({ storage, shape: this.tensor.shape });
      return;
    }
    storage.allocation.release();
  }

  /**
   * Make a float32 gradient of the sum of two 16-bit ones: rounded to 16 bits, sums over many micro-batches would stop
   * growing. Of the first gradient alone, 16 bits hold everything.
   */
  #widen(present: Tensor, incoming: Storage): void {
    const sum = Storage.allocate('float32', incoming.length, 'gradients');
    writeGradient(sum, present.storage);
    addInto(sum, incoming);
    this.grad = this.#createTensor({ storage: sum, shape: this.tensor.shape });
  }
}

function writeGradient(target: Storage, source: Storage): void {
  if (target.dtype === source.dtype) return copyBuffer(target.buffer, source.buffer);
  target.buffer.fill(0 as never);
  addInto(target, source);
}
