import type { AnyModule, LoadStateResult, Named, StateDict } from '../nn/any-module';
import { Module } from '../nn/module';
import type { Parameter } from '../nn/parameter';
import type { GuardedEmitter } from '../process-group/guarded-emitter';
import type { ProcessGroup } from '../process-group/process-group';
import type { Tensor } from '../tensor/tensor';
import type { GradientEvents } from './gradient-events';

/** What a module's forward takes. */
export type ModuleInput<M extends AnyModule> = Parameters<M['forward']>;

/** What a module's forward gives. */
export type ModuleOutput<M extends AnyModule> = Awaited<ReturnType<M['forward']>>;

/**
 * A module that trains another one over a group: base of DistributedDataParallel and of what `zeroWrap` returns. It has
 * the type of the module that it wraps, and its parameters, buffers and state under the names that they have there.
 */
export abstract class WrappedModule<M extends AnyModule> extends Module<ModuleInput<M>, ModuleOutput<M>> {
  /** The wrapped module. */
  readonly module: M;
  readonly processGroup: ProcessGroup;
  readonly #events: GuardedEmitter<GradientEvents>;

  constructor(module: M, group: ProcessGroup, events: GuardedEmitter<GradientEvents>) {
    super();
    this.module = module;
    this.processGroup = group;
    this.#events = events;
  }

  /** The wrapped module's parameters, under the names that they have there. */
  override namedParameters(): Named<Parameter>[] {
    return this.module.namedParameters();
  }

  /** The wrapped module's buffers, under the names that they have there. */
  override namedBuffers(options?: { readonly persistentOnly?: boolean | undefined }): Named<Tensor>[] {
    return this.module.namedBuffers(options);
  }

  /** The wrapped module's state: it loads into a plain module as well. ZeRO stage 3: inside `withFullParameters`. */
  override stateDict(): StateDict {
    return this.module.stateDict();
  }

  /** Load the same state on every rank. ZeRO stage 3: inside `withFullParameters`. */
  override loadStateDict(
    state: Readonly<StateDict> | ReadonlyMap<string, Tensor>,
    options?: { readonly strict?: boolean | undefined },
  ): LoadStateResult {
    return this.module.loadStateDict(state, options);
  }

  /** Listen to how gradients are averaged: `bucketLaunched`, `bucketDone`, `stepEnd`. */
  on<K extends keyof GradientEvents>(event: K, listener: GradientEvents[K]): this {
    this.#events.on(event, listener);
    return this;
  }

  /** Stop listening. */
  off<K extends keyof GradientEvents>(event: K, listener: GradientEvents[K]): this {
    this.#events.off(event, listener);
    return this;
  }
}
