import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { isFloatDType } from '../core/dtype';
import { parseOptions } from '../core/options';
import { describeTensor } from '../tensor/describe';
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

  /** @internal Take the name under which a Module lists it: the first one, then one that ends in the one it has. */
  addName(name: string): void {
    if (this.#name === undefined || name.endsWith(`.${this.#name}`)) this.#name = name;
  }
}
