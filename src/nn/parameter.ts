import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { copyBuffer, isFloatDType, type DType, type HostBuffer } from '../core/dtype';
import { parseOptions } from '../core/options';
import { describeTensor } from '../tensor/describe';
import { convertBuffer } from '../tensor/operators/cast';
import { checkShape, sizeOf, type Shape } from '../tensor/shape';
import { Storage } from '../tensor/storage';
import { adoptMemory, Tensor } from '../tensor/tensor';

/** The ranks that hold the parts of a sharded parameter. */
export interface PlacementGroup {
  /** This rank in the group. */
  readonly rank: number;
  /** Ranks in the group. */
  readonly size: number;
}

/**
 * Where a parameter's elements are: all of them on every rank, or cut along `dim` over the ranks of `group`. Norms,
 * overflow checks and checkpoints read it.
 */
export type Placement = 'replicated' | { readonly group: PlacementGroup; readonly dim: number };

/** Makes the first values of a parameter that has none yet; float32, the same at each call. */
export type InitialValues = () => Float32Array;

export interface ParameterOptions {
  /** False for a frozen parameter; default true. */
  readonly requiresGrad?: boolean | undefined;
  /** For messages; default: the name under which a Module lists it. */
  readonly name?: string | undefined;
  /** Default 'replicated'. */
  readonly placement?: Placement | undefined;
}

const optionsSchema = z.strictObject({
  requiresGrad: z.boolean().default(true),
  name: z.string().optional(),
  placement: z.custom<Placement>().optional(),
});

/**
 * A leaf tensor that a Module lists among its parameters and an optimizer updates. Its bytes count as 'parameters', and
 * `tidy` leaves it alone.
 */
export class Parameter extends Tensor {
  #name: string | undefined;
  #placement: Placement;
  #initialValues: InitialValues | undefined;

  /**
   * @param tensor gives its memory, which is not copied; where it was computed from others, the graph is left behind
   * @throws InvalidArgumentError for anything but a tensor, or a trainable one of integers
   */
  constructor(tensor: Tensor, options: ParameterOptions = {}) {
    if (!(tensor instanceof Tensor)) {
      throw new InvalidArgumentError(
        `new Parameter: expected a tensor, got ${typeof tensor}. Use Tensor.from(values).`,
      );
    }
    const { requiresGrad } = parseOptions(optionsSchema, options, 'new Parameter');
    if (requiresGrad && !isFloatDType(tensor.dtype)) {
      throw new InvalidArgumentError(
        `new Parameter: ${describeTensor(tensor)} cannot be trained; only floating point tensors have gradients. ` +
          'Keep integers in a buffer (registerBuffer).',
      );
    }
    super({ storage: tensor.storage, shape: tensor.shape }, { requiresGrad });
    adoptMemory(this, tensor, 'parameters');
    this.#name = options.name;
    this.#placement = options.placement ?? 'replicated';
  }

  /** What messages call it: the longest name under which a Module has listed it, as `blocks.0.fc1.weight`. */
  get name(): string | undefined {
    return this.#name;
  }

  set name(name: string | undefined) {
    this.#name = name;
  }

  /** Where its elements are; see Placement. */
  get placement(): Placement {
    return this.#placement;
  }

  set placement(placement: Placement) {
    this.#placement = placement;
  }

  /**
   * @internal A parameter with a shape and no memory; it takes none before `materialize`, and whatever reads it throws. See
   * [Note: deferred parameters].
   */
  static deferred(shape: Shape, initialValues: InitialValues): Parameter {
    const explain = (): Error => noValuesYet(parameter);
    const storage = Storage.vacant('float32', sizeOf(shape), explain, 'parameters');
    const parameter = new Parameter(new Tensor({ storage, shape: checkShape(shape, 'a deferred parameter') }));
    parameter.#initialValues = initialValues;
    return parameter;
  }

  /** @internal True for a parameter that was created deferred and has no values yet. */
  get isDeferred(): boolean {
    return this.#initialValues !== undefined;
  }

  /** @internal Convert to `dtype`; a deferred parameter stays deferred. */
  convert(dtype: DType, what: string): void {
    if (this.isDeferred) {
      this.replaceStorage(
        Storage.vacant(dtype, this.size, () => noValuesYet(this), 'parameters'),
        what,
      );
    } else this.replaceStorage(Storage.of(convertBuffer(this.storage, dtype), 'parameters'), what);
  }

  /** @internal Give a deferred parameter its first values, in memory of its own; any other is left alone. */
  materialize(): void {
    if (this.#initialValues === undefined) return;
    this.occupy(this.#firstValues(this.#initialValues));
    this.storage.allocation.resume();
    this.#initialValues = undefined;
  }

  /**
   * @internal Write the values, the first ones of a deferred parameter, into `storage`, which is its memory from now on; of
   * another floating point dtype, it converts them.
   */
  moveInto(storage: Storage, what: string): void {
    const values = this.#initialValues === undefined ? this.storage : Storage.of(this.#initialValues());
    copyBuffer(storage.buffer, values.dtype === storage.dtype ? values.buffer : convertBuffer(values, storage.dtype));
    this.replaceStorage(storage, what);
    this.#initialValues = undefined;
  }

  #firstValues(initialValues: InitialValues): HostBuffer {
    const values = initialValues();
    return this.dtype === 'float32' ? values : convertBuffer(Storage.of(values), this.dtype);
  }

  /** @internal Take the name under which a Module lists it: the first one, then one that ends in the one it has. */
  addName(name: string): void {
    if (this.#name === undefined || name.endsWith(`.${this.#name}`)) this.#name = name;
  }
}

function noValuesYet(parameter: Parameter): InvalidArgumentError {
  return new InvalidArgumentError(
    `${describeTensor(parameter)} has no values yet: it was made inside the factory that was given to zeroWrap, which ` +
      'gives it values later, unit by unit. Use it after zeroWrap, inside withFullParameters; or start it from values of ' +
      'your own with new Parameter(tensor), which is not deferred.',
  );
}
