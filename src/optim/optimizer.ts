import { InvalidArgumentError } from '../core/errors';
import { floatsOf } from '../tensor/operators/floats';
import { assertNoPendingCall, markPendingCall } from '../tensor/pending-calls';
import type { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import { clipGradients, type ClipGradNormOptions } from './clip-grad-norm';
import { type FloatBuffer, storeFloats } from './float-buffer';
import { gradientGates } from './gradient-gates';
import { loadOptimizerState, type OptimizerState, saveOptimizerState } from './optimizer-state';
import {
  makeParamGroup,
  makeParamGroups,
  type OptimizerParams,
  type ParamGroup,
  type ParamGroupOptions,
  type ParseSettings,
} from './param-group';
import { emptyParameterState, type ParameterState, stateBuffer } from './parameter-state';

/** What `Optimizer.update` works on: a parameter or, if the optimizer is element-wise, any part of one. */
export interface UpdateTarget {
  /** Changed in place. */
  readonly parameter: FloatBuffer;
  /** As long as the parameter; only read. */
  readonly gradient: FloatBuffer;
  /** One buffer for each of `stateNames`, as long as the parameter, zero at first; changed in place. */
  readonly state: Readonly<Record<string, FloatBuffer>>;
  /** The number of this update of this parameter, from 1. */
  readonly step: number;
}

/**
 * Updates parameters from their gradients; base of SGD, Adam and AdamW, and of your own.
 *
 * Takes Parameters, leaf tensors, or groups `{ params, lr, ... }` of them. A parameter without a gradient is skipped, and
 * its state and step count with it. A subclass gives `stateNames` and `update`, which works on plain buffers, so that a
 * strategy can hand it parts of parameters (ZeRO does, if `isElementwise`).
 *
 * 16-bit parameters: state is float32, updates are computed in float32 and rounded once.
 */
export abstract class Optimizer<Settings extends { lr: number } = { lr: number }, Options extends object = object> {
  /** The groups; their settings may be changed between steps, as `optimizer.paramGroups[0].lr = 0.01`. */
  readonly paramGroups: readonly ParamGroup<Settings>[];
  readonly #groups: ParamGroup<Settings>[];
  readonly #defaults: Options | undefined;
  readonly #parse: ParseSettings<Settings>;
  readonly #states = new Map<Tensor, ParameterState>();
  #pendingCall: string | undefined;

  /**
   * True if `update` treats every element by itself, so that a parameter may be cut anywhere. False for rules that look
   * at a whole tensor, such as LARS and LAMB.
   */
  abstract readonly isElementwise: boolean;

  /**
   * @param parse turns options (the group's over the optimizer's) into complete settings, or throws
   * @throws InvalidArgumentError for an empty list, a tensor that is no floating point leaf, one that is listed twice,
   *   or options that do not parse
   */
  protected constructor(
    params: OptimizerParams<Options>,
    options: Options | undefined,
    parse: ParseSettings<Settings>,
  ) {
    this.#defaults = options;
    this.#parse = parse;
    this.#groups = makeParamGroups(params, options, parse, `new ${this.constructor.name}`);
    this.paramGroups = this.#groups;
  }

  /** The buffers kept for each parameter of a group with these settings. */
  abstract stateNames(settings: Settings): readonly string[];

  /** One update, in place. Synchronous, and a pure function of its arguments. */
  abstract update(target: UpdateTarget, settings: Settings): void;

  /** All parameters, group by group. */
  get parameters(): Tensor[] {
    return this.paramGroups.flatMap((group) => group.params);
  }

  /** Add a group, say of layers that are trained from now on; its parameters must be in no group yet. */
  addParamGroup(group: ParamGroupOptions<Options>): void {
    const what = `${this.constructor.name}.addParamGroup`;
    this.#refuseIfPending('addParamGroup()');
    this.#groups.push(makeParamGroup(group, this.#defaults, this.#parse, what, this.paramGroups));
  }

  /**
   * Update every parameter that has a gradient.
   *
   * Waits for gradients whose synchronisation is in flight, then updates all parameters at once; where nothing is in
   * flight, it does so before it returns. A rejection leaves parameters and state as they were. NaN and infinite
   * gradients are applied as they are, as torch does.
   * @throws InvalidArgumentError if a previous call, or a backward() of these parameters, was not awaited; if a gradient
   *   was not synchronised; if a group's settings are no longer valid
   */
  async step(): Promise<void> {
    await this.#exclusively('step()', async () => {
      for (const gate of gradientGates(this.parameters)) await gate.settle('optimizer.step()');
      const updates = this.paramGroups.flatMap((group, index) => this.#planGroup(group, index));
      for (const apply of updates) apply();
    });
  }

  /** Drop all gradients. */
  zeroGrad(): void {
    this.#refuseIfPending('zeroGrad()');
    for (const parameter of this.parameters) assertNoPendingCall(parameter, 'zeroGrad');
    for (const parameter of this.parameters) parameter.grad = undefined;
  }

  /**
   * Scale all gradients by min(1, maxNorm / (norm + 1e-6)), where norm is that of all of them together, and return the
   * norm before. See the function `clipGradNorm`.
   */
  async clipGradNorm(maxNorm: number, options?: ClipGradNormOptions): Promise<number> {
    return this.#exclusively('clipGradNorm()', () => {
      return clipGradients(this.parameters, maxNorm, options, 'optimizer.clipGradNorm()');
    });
  }

  /** What is kept about a parameter; undefined before its first update. */
  stateOf(parameter: Tensor): ParameterState | undefined {
    return this.#states.get(parameter);
  }

  /** State and settings, parameters by their index over all groups. A copy: later steps do not change it. */
  stateDict(): OptimizerState {
    this.#refuseIfPending('stateDict()');
    return saveOptimizerState(this.paramGroups, this.#states);
  }

  /**
   * Take over a saved state, which is copied.
   * @throws InvalidArgumentError, with nothing changed, unless groups, parameter shapes and buffers are the same
   */
  loadStateDict(state: OptimizerState): void {
    this.#refuseIfPending('loadStateDict()');
    const what = `${this.constructor.name}.loadStateDict`;
    const loaded = loadOptimizerState(state, this.paramGroups, this.#parse, (group) => this.stateNames(group), what);
    loaded.settings.forEach((settings, index) => Object.assign(this.paramGroups[index] as object, settings));
    for (const { buffers } of this.#states.values()) Object.values(buffers).forEach((buffer) => buffer.dispose());
    this.#states.clear();
    for (const [parameter, parameterState] of loaded.states) this.#states.set(parameter, parameterState);
  }

  /** Functions that update the group's parameters; whatever can be refused is refused here, before the first one runs. */
  #planGroup(group: ParamGroup<Settings>, index: number): (() => void)[] {
    const { params, ...given } = group;
    const settings = this.#parse(given, `${this.constructor.name}.step: paramGroups[${index}]`);
    const names = this.stateNames(settings);
    return params.flatMap((parameter) => {
      const gradient = parameter.grad?.storage;
      if (gradient === undefined) return [];
      const target = parameter.storage; // throws, naming the parameter, where another rank holds it
      return [() => this.#updateParameter(parameter, target, gradient, names, settings)];
    });
  }

  #updateParameter(
    parameter: Tensor,
    target: Storage,
    gradient: Storage,
    names: readonly string[],
    settings: Settings,
  ): void {
    let kept = this.#states.get(parameter);
    if (kept === undefined) this.#states.set(parameter, (kept = emptyParameterState()));
    const state: Record<string, FloatBuffer> = {};
    for (const name of names) state[name] = floatsOf(stateBuffer(kept, name, parameter).storage);
    const values = floatsOf(target);
    this.update({ parameter: values, gradient: floatsOf(gradient), state, step: ++kept.step }, settings);
    storeFloats(values, target);
  }

  /** Run one call that reads or changes what others do; a second one meanwhile is refused, and so is a backward(). */
  async #exclusively<T>(call: string, run: () => Promise<T>): Promise<T> {
    this.#refuseIfPending(call);
    const release = markPendingCall(this.parameters, call);
    this.#pendingCall = call;
    try {
      return await run();
    } finally {
      this.#pendingCall = undefined;
      release();
    }
  }

  #refuseIfPending(call: string): void {
    if (this.#pendingCall === undefined) return;
    throw new InvalidArgumentError(
      `optimizer.${call}: the previous call was not awaited: optimizer.${this.#pendingCall} is still at work. ` +
        `Write \`await optimizer.${this.#pendingCall}\`.`,
    );
  }
}
