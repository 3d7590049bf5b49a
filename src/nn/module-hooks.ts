/** The hooks of a module, and how forward and backward run them. */
import { asError } from '../core/errors';
import { stderrLogger } from '../core/logger';
import { afterBackward } from '../tensor/backward-session';
import { customFunction } from '../tensor/custom-function';
import { isGradEnabled } from '../tensor/gradient-mode';
import type { Tensor } from '../tensor/tensor';
import type { AnyModule } from './any-module';
import { mapTensors } from './map-tensors';

/**
 * Stands for one run of a module's forward and its way back in backward: all hooks that see the same run are given the same
 * one, so that what one took another can give back. Nothing is kept in it.
 */
export type ForwardCall = object;

/** Sees the input of a forward that is about to run. May be async: what it returns is awaited, and ignored. */
export type ForwardPreHook<In> = (module: AnyModule, input: In, call: ForwardCall) => unknown;
/** Sees the input and output of a forward that succeeded. */
export type ForwardHook<In, Out> = (module: AnyModule, input: In, output: Out, call: ForwardCall) => unknown;
export type ForwardCleanup = (module: AnyModule, call: ForwardCall) => unknown;
export type BackwardHook = (module: AnyModule, call: ForwardCall) => unknown;

/** Functions in order of registration; the same one may be registered twice. */
class HookList<H> {
  #entries: readonly { readonly hook: H }[] = [];

  add(hook: H): () => void {
    const entry = { hook };
    this.#entries = [...this.#entries, entry];
    return () => {
      this.#entries = this.#entries.filter((other) => other !== entry);
    };
  }

  get isEmpty(): boolean {
    return this.#entries.length === 0;
  }

  /** The hooks as they are now: one that unsubscribes while they run does not disturb the others. */
  get all(): readonly H[] {
    return this.#entries.map((entry) => entry.hook);
  }
}

export class ModuleHooks {
  readonly forwardPre = new HookList<ForwardPreHook<never>>();
  readonly forwardPost = new HookList<ForwardHook<never, never>>();
  readonly forwardCleanup = new HookList<ForwardCleanup>();
  readonly backwardPre = new HookList<BackwardHook>();
  readonly backwardPost = new HookList<BackwardHook>();

  get isEmpty(): boolean {
    return this.forwardPre.isEmpty && this.forwardPost.isEmpty && this.forwardCleanup.isEmpty && !this.hasBackward;
  }

  get hasBackward(): boolean {
    return !this.backwardPre.isEmpty || !this.backwardPost.isEmpty;
  }
}

/** `forward`, with the module's hooks around it. Rejects with the first error; cleanups run in any case. */
export async function runForward<In extends readonly unknown[], Out>(
  module: AnyModule,
  hooks: ModuleHooks,
  input: In,
  forward: (...input: In) => Promise<Out>,
): Promise<Out> {
  if (hooks.isEmpty) return forward.call(module, ...input);
  const call: ForwardCall = {};
  const cleanups = hooks.forwardCleanup.all;
  let output: Out;
  try {
    output = await runHooked(module, hooks, input, forward, call);
  } catch (error) {
    await runCleanups(module, cleanups, call).catch((later: unknown) => {
      const { message } = asError(later);
      stderrLogger.warn(`${module.constructor.name}: a forward cleanup failed too, after forward had: ${message}`);
    });
    throw error;
  }
  await runCleanups(module, cleanups, call);
  return output;
}

async function runHooked<In extends readonly unknown[], Out>(
  module: AnyModule,
  hooks: ModuleHooks,
  input: In,
  forward: (...input: In) => Promise<Out>,
  call: ForwardCall,
): Promise<Out> {
  for (const hook of hooks.forwardPre.all) await hook(module, input as never, call);
  const passage = hooks.hasBackward && isGradEnabled() ? new BackwardPassage(module, hooks, call) : undefined;
  const wrapped = passage === undefined ? input : passage.wrapInput(input);
  const computed = await forward.call(module, ...wrapped);
  const output = passage === undefined ? computed : passage.wrapOutput(computed);
  for (const hook of hooks.forwardPost.all) await hook(module, input as never, output as never, call);
  return output;
}

/** Run all cleanups, whatever happens, then throw the first error. */
async function runCleanups(module: AnyModule, cleanups: readonly ForwardCleanup[], call: ForwardCall): Promise<void> {
  const errors: unknown[] = [];
  for (const cleanup of cleanups) {
    try {
      await cleanup(module, call);
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}

/**
 * [Note: backward hooks] One forward's way back through a module. An identity node is put behind every tensor that goes in
 * or comes out. Backward runs nodes in descending order of creation, so the first output's node comes before everything
 * that forward recorded, and the first input's node after all of it, parameter gradients included.
 */
class BackwardPassage {
  readonly #module: AnyModule;
  readonly #pre: readonly BackwardHook[];
  readonly #post: readonly BackwardHook[];
  readonly #call: ForwardCall;
  #isInside = false;

  constructor(module: AnyModule, hooks: ModuleHooks, call: ForwardCall) {
    this.#module = module;
    this.#call = call;
    this.#pre = hooks.backwardPre.all;
    this.#post = hooks.backwardPost.all;
  }

  wrapInput<T>(input: T): T {
    return throughIdentity(input, () => this.#leave());
  }

  wrapOutput<T>(output: T): T {
    return throughIdentity(output, () => this.#enter());
  }

  /** Backward has reached the module. */
  async #enter(): Promise<void> {
    if (this.#isInside) return;
    this.#isInside = true;
    for (const hook of this.#pre) await hook(this.#module, this.#call);
    afterBackward(() => this.#leave()); // where no gradient goes to an input
  }

  /** Backward is done with the module. */
  async #leave(): Promise<void> {
    if (!this.#isInside) return;
    this.#isInside = false;
    for (const hook of this.#post) await hook(this.#module, this.#call);
  }
}

/** `value` with an equal tensor for each in it that needs a gradient; backward awaits `onBackward` between the two. */
function throughIdentity<T>(value: T, onBackward: () => Promise<void>): T {
  const identity = customFunction({
    name: 'moduleBoundary',
    forward: (x: Tensor) => x,
    backward: async (gradient) => {
      await onBackward();
      return gradient;
    },
  });
  return mapTensors(value, (tensor) => (tensor.requiresGrad ? identity(tensor) : tensor));
}
