import type { DType } from '../core/dtype';
import type { Tensor } from '../tensor/tensor';
import type { ForwardCall } from './module-hooks';
import type { Parameter } from './parameter';

/** A parameter, buffer or module with its name relative to where it was looked for; '' for that module itself. */
export type Named<T> = readonly [name: string, value: T];

/** Tensors by name, as `blocks.0.fc1.weight`. */
export type StateDict = Record<string, Tensor>;

/** Names that did not meet; both are empty after a strict load. */
export interface LoadStateResult {
  /** Names of the module that the state lacks; their values stay. */
  readonly missingKeys: readonly string[];
  /** Names of the state that the module lacks. */
  readonly unexpectedKeys: readonly string[];
}

/**
 * A Module of any inputs and output: what code that works on all modules takes. Every `Module<In, Out>` is one; the
 * methods are described there.
 */
export interface AnyModule {
  readonly isTraining: boolean;
  forward(...input: never): Promise<unknown>;
  to(dtype: DType): this;
  train(mode?: boolean): this;
  eval(): this;
  parameters(): Parameter[];
  namedParameters(): Named<Parameter>[];
  buffers(): Tensor[];
  namedBuffers(options?: { readonly persistentOnly?: boolean | undefined }): Named<Tensor>[];
  children(): AnyModule[];
  namedChildren(): Named<AnyModule>[];
  modules(): AnyModule[];
  namedModules(): Named<AnyModule>[];
  zeroGrad(): void;
  stateDict(): StateDict;
  loadStateDict(
    state: Readonly<StateDict> | ReadonlyMap<string, Tensor>,
    options?: { readonly strict?: boolean | undefined },
  ): LoadStateResult;
  registerForwardPreHook(hook: (module: AnyModule, input: unknown, call: ForwardCall) => unknown): () => void;
  registerForwardHook(
    hook: (module: AnyModule, input: unknown, output: unknown, call: ForwardCall) => unknown,
  ): () => void;
  registerForwardCleanup(cleanup: (module: AnyModule, call: ForwardCall) => unknown): () => void;
  registerBackwardPreHook(hook: (module: AnyModule, call: ForwardCall) => unknown): () => void;
  registerBackwardHook(hook: (module: AnyModule, call: ForwardCall) => unknown): () => void;
}
