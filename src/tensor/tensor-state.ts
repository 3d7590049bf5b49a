import { inspect, type InspectOptions } from 'node:util';
import { isFloatDType, type DType, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { invariant } from '../core/invariant';
import { runBackward } from './backward';
import { fullValue } from './creation';
import { describeTensor } from './describe';
import { elementsOf, formatElements, formatHead, nestedArray } from './display';
import type { GradientGate, GradientHook, GradientLeaf } from './gradient-leaf';
import { isGradEnabled } from './gradient-mode';
import type { Edge, Source } from './graph';
import { formatShape, isSameShape, sizeOf, type Shape } from './shape';
import { Lease, type Storage } from './storage';
import type { Tensor } from './tensor';
import type { Value } from './value';

/** What a tensor is: memory, a shape, a place in the graph, a gradient. What can be done with it is in tensor.ts. */
export abstract class TensorState {
  readonly shape: Shape;
  readonly dtype: DType;
  /** The elements, row major; the tensor's own memory. float16 and bfloat16 hold bits: `toArray()` gives their values. */
  declare readonly data: HostBuffer;
  /* All else is private: tests compare tensors by their own enumerable properties, which are the three above. */
  #storage: Storage;
  #lease: Lease;
  readonly #edge: Edge | undefined;
  #leaf: GradientLeaf | undefined;
  #requiresGrad = false;
  #isDisposed = false;

  /** A tensor over the memory of `value`, which is not copied. */
  constructor(value: Value, edge: Edge | undefined) {
    const { storage, shape } = value;
    this.shape = shape;
    this.dtype = storage.dtype;
    this.#storage = storage;
    if (storage.isVacant) this.#showStorage();
    else (this as { data: HostBuffer }).data = storage.buffer;
    this.#lease = new Lease(storage.allocation);
    this.#edge = edge;
  }

  /** @internal */
  protected abstract makeLeaf(): GradientLeaf;

  get device(): 'cpu' {
    return 'cpu';
  }

  /** Number of elements. */
  get size(): number {
    return sizeOf(this.shape);
  }

  /**
   * The memory.
   * @throws InvalidArgumentError once the tensor is disposed of
   */
  get storage(): Storage {
    if (this.#isDisposed) throw this.#disposedError();
    return this.#storage;
  }

  /** @internal This tensor's claim on its memory in the account. */
  get lease(): Lease {
    return this.#lease;
  }

  /** @internal What autograd keeps about a leaf; made at first use. */
  get leaf(): GradientLeaf {
    if (this.#edge !== undefined) {
      throw new InvalidArgumentError(
        `${describeTensor(this)} was computed from others, so it keeps no gradient and has no hooks. Use a leaf, or detach() it first.`,
      );
    }
    this.#leaf ??= this.makeLeaf();
    return this.#leaf;
  }

  /** @internal Where this tensor's gradient goes; undefined if it needs none. */
  get source(): Source {
    return this.#edge ?? (this.#requiresGrad ? this.leaf : undefined);
  }

  /** True unless the tensor was computed from others that require a gradient. */
  get isLeaf(): boolean {
    return this.#edge === undefined;
  }

  get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /** Whether backward() computes a gradient for this tensor. Can be set on leaves of floating point. */
  get requiresGrad(): boolean {
    return this.#edge !== undefined || this.#requiresGrad;
  }

  set requiresGrad(requiresGrad: boolean) {
    if (this.#edge !== undefined) {
      if (requiresGrad) return;
      throw new InvalidArgumentError(
        'requiresGrad: a tensor computed from others that require a gradient does too; detach() gives one that does not.',
      );
    }
    if (requiresGrad && !isFloatDType(this.dtype)) {
      throw new InvalidArgumentError(`requiresGrad: only floating point tensors have gradients, got ${this.dtype}.`);
    }
    this.#requiresGrad = requiresGrad;
  }

  /** The gradient that backward() calls have summed up, on leaves; undefined where there is none. */
  get grad(): Tensor | undefined {
    return this.#leaf?.grad;
  }

  set grad(gradient: Tensor | undefined) {
    if (gradient === undefined && this.#leaf === undefined) return;
    this.leaf.grad = gradient;
  }

  /**
   * A tensor of this shape that the engine writes the first gradient into, and sets `.grad` to, when `.grad` is
   * undefined; later gradients are added in place. DDP points it at a part of a bucket.
   */
  get gradientBuffer(): Tensor | undefined {
    return this.#leaf?.gradientBuffer;
  }

  set gradientBuffer(buffer: Tensor | undefined) {
    this.leaf.gradientBuffer = buffer;
  }

  /** What optimizers and clipping await before they read `.grad`. Set by strategies that synchronise gradients. */
  get gradientGate(): GradientGate | undefined {
    return this.#leaf?.gradientGate;
  }

  set gradientGate(gate: GradientGate | undefined) {
    this.leaf.gradientGate = gate;
  }

  /**
   * Call `hook` once in every outermost backward that gives this leaf a gradient: after its last use, with `.grad` final.
   * @returns a function that removes the hook
   */
  onGradientReady(hook: GradientHook): () => void {
    return this.leaf.addHook(hook);
  }

  /**
   * Compute the gradients of this tensor with respect to the leaves it was computed from, and add them to their `.grad`.
   * Frees the graph as it goes.
   *
   * @param gradient of what comes after, of this shape and dtype; default 1, for a tensor of one element
   * @throws InvalidArgumentError (as a rejection) if there is nothing to compute, the graph was used before, or another
   *   backward() or step() is still pending on one of the leaves
   */
  async backward(gradient?: Tensor): Promise<void> {
    const { source } = this;
    if (source === undefined) {
      throw new InvalidArgumentError(
        `backward: ${describeTensor(this)} does not depend on a tensor that requires a gradient${isGradEnabled() ? '' : ' (this is inside noGrad)'}.`,
      );
    }
    return runBackward(source, gradient === undefined ? this.#unitSeed() : this.#checkSeed(gradient));
  }

  #unitSeed(): Value {
    if (this.size !== 1) {
      throw new InvalidArgumentError(
        `backward: expected a tensor of one element, got shape ${formatShape(this.shape)}. Reduce it with mean() or sum(), or pass the gradient.`,
      );
    }
    return fullValue(this.shape, 1, this.dtype, 'backward');
  }

  #checkSeed(gradient: Tensor): Value {
    if (isSameShape(this.shape, gradient.shape) && this.dtype === gradient.dtype) return gradientValue(gradient);
    throw new InvalidArgumentError(
      `backward: expected a gradient like the tensor, ${this.dtype} ${formatShape(this.shape)}, got ${gradient.dtype} ${formatShape(gradient.shape)}.`,
    );
  }

  /** The elements as arrays in arrays; a single number for shape []. int64 gives bigints. */
  toArray(): ReturnType<typeof nestedArray> {
    return nestedArray(this);
  }

  /** The only element, as a number. @throws InvalidArgumentError for another size, or an int64 beyond 2^53 */
  item(): number {
    const element = this.#onlyElement('item');
    if (typeof element === 'number' || Number.isSafeInteger(Number(element))) return Number(element);
    throw new InvalidArgumentError(`item: ${element} has more than 53 bits; use itemBigInt().`);
  }

  /** The only element of an integer tensor, as a bigint. */
  itemBigInt(): bigint {
    if (isFloatDType(this.dtype)) {
      throw new InvalidArgumentError(`itemBigInt: expected integers, got ${this.dtype}; use item().`);
    }
    return BigInt(this.#onlyElement('itemBigInt'));
  }

  #onlyElement(what: string): number | bigint {
    if (this.size === 1) return elementsOf(this)[0] as number | bigint;
    throw new InvalidArgumentError(`${what}: expected a tensor of one element, got shape ${formatShape(this.shape)}.`);
  }

  /** The elements on the host: this tensor's own memory, since it lives there. */
  async toHost(): Promise<HostBuffer> {
    return this.storage.buffer;
  }

  /**
   * @internal Take the memory away, see [Note: vacant storage]: whatever reads it throws what `explain` gives.
   */
  vacate(explain: () => Error): void {
    this.#storage.vacate(explain);
    this.#showStorage();
  }

  /** @internal Give the tensor memory, of its dtype and size. */
  occupy(buffer: HostBuffer): void {
    this.#storage.occupy(buffer);
    this.#showStorage();
  }

  /**
   * @internal Swap the memory of a leaf for good, whatever its elements; dtype and data follow. The account forgets the old
   * memory, and a graph that saved it is refused in backward, as after any change in place.
   * @throws InvalidArgumentError, with nothing changed, for a tensor that was computed, or while a backward() or step()
   *   is at work on it
   */
  replaceStorage(storage: Storage, what = 'replaceStorage'): void {
    const { pendingBackward, pendingCall } = this.leaf;
    const pending = pendingBackward === undefined ? pendingCall : 'backward()';
    if (pending !== undefined) {
      throw new InvalidArgumentError(
        `${what}: the previous ${pending} is still at work on ${describeTensor(this)}. Write \`await\` before it.`,
      );
    }
    invariant(storage.length === this.size, `${describeTensor(this)} is given memory of ${storage.length} elements`);
    const previous = this.#lease;
    this.#lease = new Lease(storage.allocation);
    this.#storage.markChanged();
    this.#storage = storage;
    (this as { dtype: DType }).dtype = storage.dtype;
    previous.release();
    this.#showStorage();
  }

  /** Let `data` follow the storage; while that is vacant it is not enumerable, so that a comparison does not read it. */
  #showStorage(): void {
    const read = (): HostBuffer => this.storage.buffer;
    Object.defineProperty(this, 'data', { enumerable: !this.#storage.isVacant, configurable: true, get: read });
  }

  /** Give the memory back in the account. The tensor is not usable any more; what backward needs of it is kept. */
  dispose(): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#lease.release();
    const refuse = (): never => {
      throw this.#disposedError();
    };
    Object.defineProperty(this, 'data', { enumerable: false, get: refuse });
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  #disposedError(): InvalidArgumentError {
    return new InvalidArgumentError(
      `${describeTensor(this)} was disposed of, by dispose() or at the end of a tidy(). Return it from the tidy(), or make it anew.`,
    );
  }

  /** As `console.log` shows it. */
  toString(): string {
    return inspect(this);
  }

  [inspect.custom](_depth: number, options: InspectOptions): string {
    const head = formatHead(this.constructor.name, this.shape, this.dtype);
    if (this.#isDisposed) return `${head} (disposed)`;
    if (this.#storage.isVacant) return `${head} (released)`;
    return `${head} ${formatElements(this, options)}${this.requiresGrad ? ' requiresGrad' : ''}`;
  }
}

/**
 * The value of a tensor that a caller passes as a gradient. The engine may take over memory that nobody else holds in the
 * account, so memory that is out of the account already (a computed tensor's, after its graph) is copied.
 * @internal
 */
export function gradientValue({ storage, shape, lease }: TensorState): Value {
  return lease.isHeld ? { storage, shape } : { storage: storage.clone(), shape };
}
