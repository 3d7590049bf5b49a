/**
 * Activations that are computed twice instead of kept (Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv
 * 1604.06174).
 */
import { isFloatDType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { Generator, GeneratorState } from '../core/generator';
import { logDraws, repeatDraws } from '../core/random';
import { mapTensors } from '../nn/map-tensors';
import { autocastDType, withAutocast } from '../tensor/autocast-mode';
import { customFunction } from '../tensor/custom-function';
import { describeTensor } from '../tensor/describe';
import { enableGrad, isGradEnabled, observeGrad } from '../tensor/gradient-mode';
import { formatShape } from '../tensor/shape';
import { Tensor } from '../tensor/tensor';
import { keep, tidy } from '../tensor/tidy';

/**
 * `fn(...inputs)` without keeping what is computed inside: backward runs `fn` once more and goes on from there. Costs one
 * more forward of `fn`, saves all its activations; values and gradients have the same bits.
 *
 *     const y = await checkpoint((h) => block.forward(h), x);
 *
 * `fn` may be async, take tensors (also inside arrays and plain objects) and anything else, and return one tensor or
 * several. Random numbers of the default generator and of generators passed to operators are the same in both runs, and
 * so is `autocast`. What else `fn` reads must not change until backward has run; a counter in it counts twice.
 *
 * Tensors that `fn` makes and does not return are disposed of. A tensor that needs a gradient and was computed outside
 * must come in as an input, not through the closure. Inside `noGrad` it just runs `fn`. Several outputs have one graph
 * between them, which one backward() uses up: add up their losses, and call it once.
 *
 * @throws InvalidArgumentError for a tensor of the closure as above; in backward, if the second run gives tensors of other
 *   shapes or dtypes, or a tensor it uses was changed in place since the first
 */
export async function checkpoint<In extends readonly unknown[], Out>(
  fn: (...inputs: In) => Out | Promise<Out>,
  ...inputs: In
): Promise<Out> {
  if (typeof fn !== 'function') {
    throw new InvalidArgumentError(`checkpoint: expected a function as the first argument, got ${typeof fn}.`);
  }
  if (!isGradEnabled()) return fn(...inputs);
  const first = await new FirstRun(fn, inputs).run();
  return first.record();
}

/** A tensor as it was when the first run read it. */
interface Seen {
  readonly tensor: Tensor;
  readonly version: number;
}

/** The forward of a checkpoint: what it gave, and what is needed to do it again. */
class FirstRun<In extends readonly unknown[], Out> {
  readonly #fn: (...inputs: In) => Out | Promise<Out>;
  readonly #inputs: In;
  /** Leaves that `fn` uses besides its inputs. */
  readonly #leaves = new Map<Tensor, Seen>();
  readonly #draws = new Map<Generator, GeneratorState>();
  #output!: Out;

  constructor(fn: (...inputs: In) => Out | Promise<Out>, inputs: In) {
    this.#fn = fn;
    this.#inputs = inputs;
  }

  async run(): Promise<this> {
    this.#output = await tidy(async () => {
      const inputs = mapTensors(this.#inputs, (tensor) => (tensor.requiresGrad ? tensor.detach() : tensor));
      return logDraws(this.#draws, () =>
        observeGrad(
          (tensor) => this.#see(tensor),
          async () => this.#fn(...inputs),
        ),
      );
    });
    return this;
  }

  #see(tensor: Tensor): void {
    if (this.#leaves.has(tensor)) return;
    if (!tensor.isLeaf) {
      throw new InvalidArgumentError(
        `checkpoint: the function uses ${describeTensor(tensor)}, which was computed outside from tensors that need a gradient. ` +
          'Pass it as an input, by itself or in arrays and plain objects: checkpoint((x, y) => ..., x, y). Inside a Map or an instance of a class it is not found.',
      );
    }
    this.#leaves.set(tensor, { tensor, version: tensor.storage.allocation.version });
  }

  /** The output, with a node behind its tensors that does it all again in backward. */
  record(): Out {
    const inputs = tensorsOf(this.#inputs).filter((tensor) => tensor.requiresGrad);
    const outputs = tensorsOf(this.#output).filter((tensor) => isFloatDType(tensor.dtype));
    if (outputs.length === 0) return this.#output;
    const secondRun = new SecondRun(
      this.#fn,
      this.#inputs,
      [...this.#leaves.values()],
      this.#draws,
      outputs.map(formOf),
    );
    const recorded = customFunction({
      name: 'checkpoint',
      forward: (..._inputs: Tensor[]) => outputs,
      backward: (...gradients) => secondRun.backward(gradients),
      hiddenLeaves: () => [...this.#leaves.keys()],
    })(...inputs);
    const byOutput = new Map(outputs.map((output, index) => [output, recorded[index] as Tensor]));
    return mapTensors(this.#output, (tensor) => byOutput.get(tensor) ?? tensor);
  }
}

class SecondRun<In extends readonly unknown[], Out> {
  readonly #fn: (...inputs: In) => Out | Promise<Out>;
  /** As `fn` takes them; tensors that need a gradient are held by tensors of our own until backward. */
  readonly #inputs: In;
  readonly #held = new Map<Tensor, Seen>();
  readonly #seen: readonly Seen[];
  readonly #draws: ReadonlyMap<Generator, GeneratorState>;
  readonly #forms: readonly string[];
  readonly #autocast = autocastDType();

  constructor(
    fn: (...inputs: In) => Out | Promise<Out>,
    inputs: In,
    leaves: readonly Seen[],
    draws: ReadonlyMap<Generator, GeneratorState>,
    forms: readonly string[],
  ) {
    this.#fn = fn;
    this.#inputs = mapTensors(inputs, (tensor) => this.#hold(tensor));
    this.#seen = [...leaves, ...this.#held.values()];
    this.#draws = draws;
    this.#forms = forms;
  }

  #hold(tensor: Tensor): Tensor {
    const held = keep(tensor.detach());
    held.requiresGrad = tensor.requiresGrad;
    this.#held.set(held, { tensor: held, version: held.storage.allocation.version });
    return held;
  }

  /** Gradients of the inputs that need one, in order, from those of the outputs. */
  async backward(gradients: readonly Tensor[]): Promise<readonly (Tensor | undefined)[]> {
    try {
      this.#refuseChanged();
      await enableGrad(async () => {
        const run = async (): Promise<Out> => this.#fn(...this.#inputs);
        const output = await repeatDraws(this.#draws, () => withAutocast(this.#autocast, run));
        const outputs = tensorsOf(output).filter((tensor) => isFloatDType(tensor.dtype));
        this.#checkForms(outputs);
        await backwardTogether(outputs, gradients);
      });
      return [...this.#held.keys()].filter((tensor) => tensor.requiresGrad).map(takeGradient);
    } finally {
      for (const tensor of this.#held.keys()) tensor.dispose();
    }
  }

  #refuseChanged(): void {
    const changed = this.#seen.find(({ tensor, version }) => tensor.storage.allocation.version !== version);
    if (changed === undefined) return;
    throw new InvalidArgumentError(
      `checkpoint: ${describeTensor(changed.tensor)} was changed in place between forward and backward, so computing again would give other values. Call backward() before the change.`,
    );
  }

  #checkForms(outputs: readonly Tensor[]): void {
    const got = outputs.map(formOf).join(', ');
    const expected = this.#forms.join(', ');
    if (got === expected) return;
    throw new InvalidArgumentError(
      `checkpoint: run again in backward, the function gave ${got || 'no tensor'} where it gave ${expected} in forward. ` +
        'It must do the same both times: no counters, no random numbers from elsewhere, no change of the module between.',
    );
  }
}

/** One backward from all `outputs` at once, so that what they share is gone through once. */
async function backwardTogether(outputs: readonly Tensor[], gradients: readonly Tensor[]): Promise<void> {
  const roots = outputs.map((output, index) => ({ output, gradient: gradients[index] as Tensor }));
  const recorded = roots.filter(({ output }) => output.requiresGrad);
  if (recorded.length === 0) return;
  const meet = customFunction({
    name: 'checkpointOutputs',
    forward: (...tensors: Tensor[]) => Tensor.zeros([], { dtype: tensors[0]?.dtype }),
    backward: () => recorded.map(({ gradient }) => gradient),
  });
  await meet(...recorded.map(({ output }) => output)).backward();
}

/** The gradient of a leaf, which has none afterwards. */
function takeGradient(leaf: Tensor): Tensor | undefined {
  const gradient = leaf.grad?.detach();
  leaf.grad = undefined;
  return gradient;
}

function tensorsOf(value: unknown): Tensor[] {
  const found: Tensor[] = [];
  mapTensors(value, (tensor) => {
    found.push(tensor);
    return tensor;
  });
  return found;
}

/** For comparison and messages. */
function formOf({ shape, dtype }: Tensor): string {
  return `${dtype} ${formatShape(shape)}`;
}
