/** The tape: a node for each recorded operator, which knows where the gradients of its inputs go. */
import { InvalidArgumentError } from '../core/errors';
import type { GradientLeaf } from './gradient-leaf';
import { Lease } from './storage';
import type { Value } from './value';

/** Where an interior tensor comes from: an output of a node. */
export interface Edge {
  readonly node: GraphNode;
  readonly output: number;
}

/** Where the gradient of an input goes; undefined for an input that needs none. */
export type Source = Edge | GradientLeaf | undefined;

type Gradients = readonly (Value | undefined)[];

/** The gradients of a node's inputs, given those of its outputs. Each comes with a hold on its memory. */
export type NodeBackward = (gradients: Gradients, needs: readonly boolean[]) => Gradients | Promise<Gradients>;

/** A claim on memory that backward will read, and what it looked like when it was saved. */
interface Saved {
  readonly lease: Lease;
  readonly version: number;
}

/**
 * Nodes are numbered as they are made, and an input is made before what is made of it: descending numbers are an order
 * for backward. Numbers are only compared, so ranks that share a process do not affect each other.
 */
const numbering = { next: 0 };

export class GraphNode {
  readonly name: string;
  readonly sequence = numbering.next++;
  readonly hiddenLeaves: readonly GradientLeaf[];
  /** The output tensors' claims on their memory, given up when the node is done. Set once, by whoever makes the outputs. */
  outputs: readonly Lease[] = [];
  /** Gradients of the outputs, as far as they have come in during a backward. */
  gradients: (Value | undefined)[] = [];
  #inputs: readonly Source[];
  #backward: NodeBackward | undefined;
  #saved: readonly Saved[];

  constructor(
    name: string,
    inputs: readonly Source[],
    saves: readonly Value[],
    backward: NodeBackward,
    hiddenLeaves: readonly GradientLeaf[] = [],
  ) {
    this.name = name;
    this.hiddenLeaves = hiddenLeaves;
    this.#inputs = inputs;
    this.#backward = backward;
    this.#saved = saves.map(({ storage: { allocation } }) => ({
      lease: new Lease(allocation),
      version: allocation.version,
    }));
  }

  /** Where the gradients of the inputs go; none once the node is freed, so that a kept loss does not keep its graph. */
  get inputs(): readonly Source[] {
    return this.#inputs;
  }

  /** True after a backward went through; the values it needed are gone. */
  get isFreed(): boolean {
    return this.#backward === undefined;
  }

  /**
   * The gradients of the inputs. Call at most once, before `free`.
   * @throws InvalidArgumentError if a saved value was changed in place meanwhile
   */
  run(gradients: Gradients): Gradients | Promise<Gradients> {
    if (this.#saved.some(({ lease, version }) => lease.allocation.version !== version)) {
      throw new InvalidArgumentError(
        `backward: a tensor that '${this.name}' saved was changed in place since (by an optimizer's step() or a collective, say), so its gradient would be wrong. Call backward() before the change, or compute the loss anew.`,
      );
    }
    const backward = this.#backward as NodeBackward;
    return backward(
      gradients,
      this.#inputs.map((source) => source !== undefined),
    );
  }

  /** Let go of what backward needed, and of the outputs' memory in the account. Idempotent. */
  free(): void {
    this.#backward = undefined;
    for (const { lease } of this.#saved) lease.release();
    for (const output of this.outputs) output.release();
    for (const gradient of this.gradients) gradient?.storage.allocation.release();
    this.#saved = [];
    this.#inputs = [];
    this.gradients = [];
  }
}
