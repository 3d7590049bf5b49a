import { z } from 'zod';
import type { DType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { assertNoPendingCall } from '../tensor/pending-calls';
import type { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';
import {
  type BackwardHook,
  type ForwardCleanup,
  type ForwardHook,
  type ForwardPreHook,
  ModuleHooks,
  runForward,
} from './module-hooks';
import type { AnyModule, LoadStateResult, Named, StateDict } from './any-module';
import { convertModule } from './module-dtype';
import { loadModuleState, saveModuleState } from './module-state';
import { childrenOf, join, MODULE_BRAND, modulesOf, parametersOf } from './module-tree';
import type { Parameter } from './parameter';

const bufferOptions = z.strictObject({ persistent: z.boolean().default(true) });

/**
 * A part of a model: parameters, other modules, and `forward`. Extend it, assign parameters and modules as properties,
 * and write `forward` as a method:
 *
 *     class Mlp extends Module {
 *       readonly fc1 = new Linear(64, 32);
 *       readonly fc2 = new Linear(32, 10);
 *       async forward(x: Tensor): Promise<Tensor> {
 *         return this.fc2.forward((await this.fc1.forward(x)).tanh());
 *       }
 *     }
 *
 * Parameters and modules are found among the enumerable properties, in the order of assignment, and in arrays there;
 * not in #private fields, Maps or closures.
 *
 * [Note: forward and hooks] `forward` always runs the hooks. The constructor installs it as an own property of the
 * instance that calls the method of the class: writable, so that spies work, and not configurable, so that a class that
 * declares `forward = async () => ...` as a field fails when it is built ("Cannot redefine property: forward") instead of
 * skipping the hooks: write `async forward(x) { ... }`. `super.forward(x)` is the parent's method alone, so hooks run once.
 */
export abstract class Module<In extends readonly unknown[] = [Tensor], Out = Tensor> implements AnyModule {
  readonly #hooks = new ModuleHooks();
  readonly #buffers = new Map<string, { readonly persistent: boolean }>();
  #isTraining = true;

  constructor() {
    const run = async (...input: In): Promise<Out> => {
      return runForward(this, this.#hooks, input, methodOf<In, Out>(this));
    };
    Object.defineProperty(this, 'forward', { value: run, writable: true, enumerable: false, configurable: false });
  }

  get [MODULE_BRAND](): true {
    return true;
  }

  /** Compute the output. A class of your own defines it as a method; see [Note: forward and hooks]. */
  abstract forward(...input: In): Promise<Out>;

  /** True unless `eval()` was called; Dropout and its like behave differently. */
  get isTraining(): boolean {
    return this.#isTraining;
  }

  /** Set this module, and all modules below, to training (or, with false, to evaluation). */
  train(mode = true): this {
    for (const [, module] of modulesOf(this)) (module as Module).#isTraining = mode;
    return this;
  }

  /** Set this module, and all modules below, to evaluation. */
  eval(): this {
    return this.train(false);
  }

  /** All parameters, here and below, each once, in order of assignment. */
  parameters(): Parameter[] {
    return this.namedParameters().map(([, parameter]) => parameter);
  }

  /** All parameters with their names, as `blocks.0.fc1.weight`; a tied one once, under its first name. */
  namedParameters(): Named<Parameter>[] {
    const named = [...parametersOf(this)];
    for (const [name, parameter] of named) parameter.addName(name);
    return named;
  }

  /** The modules assigned to this one. */
  children(): AnyModule[] {
    return this.namedChildren().map(([, child]) => child);
  }

  namedChildren(): Named<AnyModule>[] {
    return [...childrenOf(this)];
  }

  /** This module and all below, parents first, each once. */
  modules(): AnyModule[] {
    return this.namedModules().map(([, module]) => module);
  }

  /** This module, under the name '', and all below. */
  namedModules(): Named<AnyModule>[] {
    return [...modulesOf(this)];
  }

  /**
   * Make `tensor` the buffer `name`: state that is not trained, such as running statistics. It becomes the property
   * `name`, which may be assigned anew later, and is returned, so that a field can declare it:
   *
   *     readonly count = this.registerBuffer('count', Tensor.zeros([1]));
   *
   * DDP broadcasts buffers from rank 0; `stateDict` holds them unless `persistent` is false; `tidy` leaves it alone.
   */
  registerBuffer<T extends Tensor>(
    name: string,
    tensor: T,
    options: { readonly persistent?: boolean | undefined } = {},
  ): T {
    if (name === '' || name.includes('.') || (name in this && !this.#buffers.has(name))) {
      throw new InvalidArgumentError(
        `${this.constructor.name}.registerBuffer: '${name}' is ${name in this ? 'already a property of the module' : 'no name for a buffer'}.`,
      );
    }
    const { persistent } = parseOptions(bufferOptions, options, `${this.constructor.name}.registerBuffer`);
    this.#buffers.set(name, { persistent });
    Object.defineProperty(this, name, { value: tensor, writable: true, enumerable: true, configurable: true });
    return keep(tensor);
  }

  /** All buffers, here and below, each once. */
  buffers(): Tensor[] {
    return this.namedBuffers().map(([, buffer]) => buffer);
  }

  /** All buffers with their names; with `persistentOnly`, those that are saved. */
  namedBuffers(options: { readonly persistentOnly?: boolean | undefined } = {}): Named<Tensor>[] {
    const found = new Map<Tensor, string>();
    for (const [path, module] of modulesOf(this)) {
      for (const [name, { persistent }] of (module as Module).#buffers) {
        const buffer = (module as unknown as Record<string, Tensor | undefined>)[name];
        if (buffer === undefined || found.has(buffer) || (options.persistentOnly === true && !persistent)) continue;
        found.set(buffer, join(path, name));
      }
    }
    return [...found].map(([buffer, name]) => [name, buffer]);
  }

  /**
   * Convert all floating point parameters and buffers, here and below, to `dtype`, in place: they stay the same tensors, so
   * optimizers made before go on with them (what they keep of a 16-bit parameter is float32). Gradients are converted
   * with their parameters. Call it before the module is wrapped.
   *
   * @throws InvalidArgumentError, with nothing changed, unless `dtype` is of floating point, for parameters of a wrapped
   *   module, and while a backward() or step() is at work
   */
  to(dtype: DType): this {
    convertModule(this, dtype);
    return this;
  }

  /** Drop the gradients of all parameters. */
  zeroGrad(): void {
    const parameters = this.parameters();
    for (const parameter of parameters) assertNoPendingCall(parameter, 'zeroGrad');
    for (const parameter of parameters) parameter.grad = undefined;
  }

  /** Copies of all parameters and buffers, by name; a tied parameter once, under its first name. */
  stateDict(): StateDict {
    return saveModuleState(this);
  }

  /**
   * Copy saved values into the parameters and buffers of the same names. Floating point values are converted to the
   * dtype of the parameter. A tied parameter may be given under any of its names.
   *
   * @param options strict (default true): missing and unexpected names are errors; else they are returned
   * @throws InvalidArgumentError, with nothing changed, that lists missing and unexpected names and differing shapes
   */
  loadStateDict(
    state: Readonly<StateDict> | ReadonlyMap<string, Tensor>,
    options: { readonly strict?: boolean | undefined } = {},
  ): LoadStateResult {
    return loadModuleState(this, state, options.strict ?? true);
  }

  /**
   * Run `hook` before every forward, in order of registration. All hooks may be async; forward waits for them, and
   * rejects if one throws. Returns a function that takes the hook away, as the other register functions do.
   */
  registerForwardPreHook(hook: ForwardPreHook<In>): () => void {
    return this.#hooks.forwardPre.add(hook);
  }

  /** Run `hook` after every forward that succeeded. */
  registerForwardHook(hook: ForwardHook<In, Out>): () => void {
    return this.#hooks.forwardPost.add(hook);
  }

  /**
   * Run `cleanup` at the end of every forward, after the forward hooks, also where forward or a hook threw: what was
   * taken in a pre-hook is given back here. If it throws too, the first error is the one that forward rejects with.
   */
  registerForwardCleanup(cleanup: ForwardCleanup): () => void {
    return this.#hooks.forwardCleanup.add(cleanup);
  }

  /**
   * Run `hook` in backward before gradients pass through this module: when those of its outputs have arrived. Holds for
   * forwards from now on that record a graph.
   */
  registerBackwardPreHook(hook: BackwardHook): () => void {
    return this.#hooks.backwardPre.add(hook);
  }

  /**
   * Run `hook` in backward once this module is done: the gradients of its parameters and inputs are computed. Where no
   * input needs a gradient, as in the first module of a model, it runs at the end of backward. Not if backward fails.
   */
  registerBackwardHook(hook: BackwardHook): () => void {
    return this.#hooks.backwardPost.add(hook);
  }
}

/** The method `forward` of the object's class, looked up at each call so that a spy on the prototype is seen. */
function methodOf<In extends readonly unknown[], Out>(module: Module<In, Out>): (...input: In) => Promise<Out> {
  const prototype = Object.getPrototypeOf(module) as { readonly forward?: unknown };
  if (typeof prototype.forward === 'function') return prototype.forward as (...input: In) => Promise<Out>;
  throw new InvalidArgumentError(
    `${module.constructor.name}.forward: the class does not define it. Write \`async forward(x) { ... }\` as a method.`,
  );
}
