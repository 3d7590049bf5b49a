import { bytesOf, copyBuffer, type DType, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { BucketSlot, PlannedBucket } from '../strategy/bucket-plan';
import type { Parameter } from '../nn/parameter';
import { convertBuffer } from '../tensor/operators/cast';
import { withMemoryCategory } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';

/** A trainable parameter and the name under which the module lists it. */
export interface NamedParameter {
  readonly name: string;
  readonly parameter: Parameter;
}

interface Slot extends BucketSlot, NamedParameter {
  /** The slot's part of the bucket, with the parameter's shape; shares the bucket's memory. */
  readonly view: Tensor;
  /** What went in: nothing, the slot itself, or a copy of a gradient that is poisoned meanwhile. */
  sent: 'nothing' | 'view' | 'copy';
}

/**
 * The flat buffer of one bucket and the gradients that lie in it.
 *
 * [Note: gradients and buckets] With `asView` a parameter's gradient *is* its slot: backward writes into the bucket
 * and nothing is copied. Otherwise gradients have memory of their own and are copied in before the collective and
 * back after it. Meanwhile they hold NaN: what is read too early cannot pass for an average, and a change, which the
 * copy back would undo, is found.
 */
export class ReducerBucket {
  readonly index: number;
  readonly tensor: Tensor;
  readonly #slots: readonly Slot[];
  readonly #isView: boolean;
  /** Gradients that backward has yet to deliver in this pass. */
  missing: number;

  constructor(index: number, plan: PlannedBucket, parameters: readonly NamedParameter[], isView: boolean) {
    this.index = index;
    this.#isView = isView;
    // made in the first forward or backward, which may run in a tidy() of the caller's: it must outlive that
    this.tensor = withMemoryCategory(isView ? 'gradients' : 'communication', () =>
      keep(Tensor.zeros([plan.numElements], { dtype: plan.dtype })),
    );
    this.#slots = plan.slots.map((slot) => {
      const named = parameters[slot.item] as NamedParameter;
      const storage = this.tensor.storage.view(slot.offset, slot.numElements);
      const view = new Tensor({ storage, shape: named.parameter.shape });
      return { ...slot, ...named, view, sent: 'nothing' };
    });
    this.missing = this.#slots.length;
  }

  get dtype(): DType {
    return this.tensor.dtype;
  }

  get data(): HostBuffer {
    return this.tensor.storage.buffer;
  }

  get bytes(): number {
    return this.data.byteLength;
  }

  get names(): string[] {
    return this.#slots.map((slot) => slot.name);
  }

  /** For the bucket's collective. */
  get label(): string {
    return `gradients of ${this.names.join(', ')}`;
  }

  get parameters(): Parameter[] {
    return this.#slots.map((slot) => slot.parameter);
  }

  /** Have backward write gradients into this bucket; gradients that exist move in with their values. */
  adoptGradients(): void {
    if (!this.#isView) return;
    for (const slot of this.#slots) {
      const { parameter, view } = slot;
      const old = parameter.grad;
      parameter.gradientBuffer = view;
      if (old === undefined) continue;
      copyElements(view, old);
      parameter.grad = view;
    }
  }

  /** Begin a pass: every gradient is yet to come. */
  startPass(): void {
    this.missing = this.#slots.length;
  }

  /** Before the collective: all gradients in their places, zeros where a parameter has none. */
  fill(): void {
    for (const slot of this.#slots) {
      const gradient = slot.parameter.grad;
      if (gradient === undefined) {
        zeroElements(slot.view);
        slot.sent = 'nothing';
      } else if (gradient === slot.view) {
        slot.sent = 'view';
      } else {
        copyElements(slot.view, gradient);
        poison(gradient);
        slot.sent = 'copy';
      }
    }
  }

  /**
   * After the collective: every parameter has its average. `isUsed(item)` says of a parameter without a gradient
   * whether another rank had one; if none had, it stays without.
   * @throws InvalidArgumentError if a gradient was changed while the bucket was in flight
   */
  deliver(isUsed: (item: number) => boolean): void {
    this.#checkUnchanged();
    for (const { item, parameter, view } of this.#slots) {
      const gradient = parameter.grad;
      if (gradient === view) continue;
      // a float32 sum of 16-bit gradients is replaced: some ranks may have summed and others not, and all go on alike
      if (gradient?.dtype === view.dtype && !this.#isView) copyElements(gradient, view);
      else if (gradient !== undefined || isUsed(item)) parameter.grad = this.#isView ? view : view.clone();
    }
  }

  #checkUnchanged(): void {
    for (const { name, parameter, sent } of this.#slots) {
      const gradient = parameter.grad;
      if (sent === 'nothing' && gradient === undefined) continue;
      const isGone = gradient === undefined || sent === 'nothing';
      if (!isGone && (sent === 'view' || isPoisoned(gradient))) continue;
      throw new InvalidArgumentError(
        `the gradient of parameter '${name}' was ${isGone ? 'set or taken away' : 'changed'} while its bucket was being averaged over the ranks; the change would have been lost. Await syncGradients() before touching gradients (clipping and step() wait by themselves).`,
      );
    }
  }

  /** Give the memory back; parameters keep gradients that are not views of it. */
  release(): void {
    for (const { parameter, view } of this.#slots) {
      if (parameter.gradientBuffer === view) parameter.gradientBuffer = undefined;
      view.dispose();
    }
    this.tensor.dispose();
  }
}

/** Copy all elements of `source` into `target`, of the same size. A float32 sum of 16-bit gradients is rounded, or back. */
function copyElements(target: Tensor, source: Tensor): void {
  const { buffer, dtype } = target.storage;
  copyBuffer(buffer, dtype === source.dtype ? source.storage.buffer : convertBuffer(source.storage, dtype));
}

function zeroElements(tensor: Tensor): void {
  bytesOf(tensor.storage.buffer).fill(0);
}

/** All bits set: NaN in every floating point format, so that a gradient that is read too early cannot pass for one. */
function poison(gradient: Tensor): void {
  bytesOf(gradient.storage.buffer).fill(0xff);
}

function isPoisoned(gradient: Tensor): boolean {
  const bytes = bytesOf(gradient.storage.buffer);
  if (bytes.length === 0) return true;
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return buffer[0] === 0xff && buffer.subarray(1).equals(buffer.subarray(0, -1)); // each byte equals the one before it
}
