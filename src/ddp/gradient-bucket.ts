import { allocateBuffer, copyBuffer, dtypeOf, viewBuffer, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { Tensor } from '../tensor/tensor';

/**
 * A flat buffer that collects gradients, to be reduced by one collective.
 *
 *     const bucket = new GradientBucket(1000);
 *     bucket.add(gradientA);
 *     bucket.add(gradientB);
 *     await group.backend.allReduce(bucket.data, ReduceOp.Average);
 *     const [averagedA, averagedB] = bucket.extract();
 */
export class GradientBucket {
  readonly capacity: number;
  #buffer: HostBuffer | undefined;
  #shapes: (readonly number[])[] = [];
  #size = 0;

  /** @param capacity elements that fit; a whole number, 0 or more */
  constructor(capacity: number) {
    if (!Number.isSafeInteger(capacity) || capacity < 0) {
      throw new InvalidArgumentError(
        `GradientBucket: expected a capacity of 0 or more whole elements, got ${String(capacity)}.`,
      );
    }
    this.capacity = capacity;
  }

  /** Elements held now. */
  get size(): number {
    return this.#size;
  }

  get isEmpty(): boolean {
    return this.#size === 0;
  }

  get isFull(): boolean {
    return this.#size >= this.capacity;
  }

  /**
   * The `size` elements held, flat, in the order added: a live view, so reducing it in place changes what `extract`
   * gives. An empty bucket gives an empty Float32Array.
   */
  get data(): HostBuffer {
    return this.#buffer === undefined ? new Float32Array(0) : viewBuffer(this.#buffer, 0, this.#size);
  }

  /**
   * Append a copy of `tensor`'s elements; false, with nothing changed, if they do not fit.
   * @throws InvalidArgumentError if its dtype differs from what the bucket holds
   */
  add(tensor: Tensor): boolean {
    if (!(tensor instanceof Tensor)) {
      throw new InvalidArgumentError(
        `GradientBucket.add: expected a Tensor, got ${typeof tensor}. Use Tensor.from(values).`,
      );
    }
    const held = this.#buffer === undefined ? undefined : dtypeOf(this.#buffer);
    if (held !== undefined && held !== tensor.dtype) {
      throw new InvalidArgumentError(
        `GradientBucket.add: the bucket holds ${held}, got a ${tensor.dtype} tensor. Use one bucket for each dtype.`,
      );
    }
    if (this.#size + tensor.size > this.capacity) return false;
    this.#buffer ??= allocateBuffer(tensor.dtype, this.capacity);
    copyBuffer(this.#buffer, tensor.storage.buffer, this.#size);
    this.#shapes.push(tensor.shape);
    this.#size += tensor.size;
    return true;
  }

  /** Copies of the tensors, in the order added, with their shapes, cut from `data` as it is now. The bucket keeps them. */
  extract(): Tensor[] {
    let offset = 0;
    return this.#shapes.map((shape) => {
      const numElements = shape.reduce((product, extent) => product * extent, 1);
      const values = viewBuffer(this.data, offset, numElements);
      offset += numElements;
      return Tensor.from(values, shape);
    });
  }

  /** Forget the tensors; the capacity stays. */
  clear(): void {
    this.#shapes = [];
    this.#size = 0;
    this.#buffer = undefined;
  }
}
