import { InvalidArgumentError } from '../core/errors';
import type { FlatUpdate } from '../core/flat-update';
import { assertNoPendingCall, markPendingCall } from '../tensor/pending-calls';
import type { Tensor } from '../tensor/tensor';
import { clipGradients, type ClipGradNormOptions } from './clip-grad-norm';
import { gradientGates } from './gradient-gates';
import { type LoadedState, loadOptimizerState, type OptimizerState, saveOptimizerState } from './optimizer-state';
import { followParameter } from './master-copy';
import {
  makeParamGroup,
  makeParamGroups,
  type OptimizerParams,
  type ParamGroup,
  type ParamGroupOptions,
  type ParseSettings,
} from './param-group';
import { emptyParameterState, type ParameterState } from './parameter-state';
import type { ScalableOptimizer } from './scalable-optimizer';
import { updateSlice } from './slice-update';
import { unscaleGradients } from './unscale-gradients';
import type { UpdateRule, UpdateTarget } from './update-rule';

/**
 * Updates parameters from their gradients; base of SGD, Adam and AdamW, and of your own.
 *
 * Takes Parameters, leaf tensors, or groups `{ params, lr, ... }` of them. A parameter without a gradient is skipped, and
 * its state and step count with it. A subclass gives `stateNames` and `update`, which works on plain buffers, so that a
 * strategy can hand it parts of parameters (ZeRO does, if `isElementwise`).
 *
 * 16-bit parameters: state is float32; updates are summed up in float32, in a state buffer `master`, and the parameter is
 * that, rounded once ([Note: master copies]).
 */
export abstract class Optimizer<Settings extends { lr: number } = { lr: number }, Options extends object = object>
  implements UpdateRule<Settings>, ScalableOptimizer
{
  /** The groups; their settings may be changed between steps, as `optimizer.paramGroups[0].lr = 0.01`. */
  readonly paramGroups: readonly ParamGroup<Settings>[];
  readonly #groups: ParamGroup<Settings>[];
  readonly #defaults: Options | undefined;
  readonly #parse: ParseSettings<Settings>;
  readonly #states = new Map<Tensor, ParameterState>();
  #pendingCall: string | undefined;
  #owner: string | undefined;

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

  /**
   * What `update` computes at update number `step`, as numbers for a fused kernel. Leave it out where no FlatUpdate is the
   * same: the optimizer then steps in host memory alone. A subclass that changes `update` changes this too.
   */
  flatUpdate?(settings: Settings, step: number): FlatUpdate | undefined;

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

  /**
   * Multiply all gradients by `factor`, in place; a 16-bit gradient becomes a float32 one, in which nothing that was scaled
   * up to be representable vanishes. Waits for gradients in flight, as `step` does. A GradScaler calls it.
   * @returns whether a gradient is NaN or infinite afterwards; all are multiplied nevertheless
   */
  async unscaleGradients(factor: number): Promise<boolean> {
    return this.#exclusively('unscaleGradients()', async () => {
      for (const gate of gradientGates(this.parameters)) await gate.settle('optimizer.unscaleGradients()');
      return unscaleGradients(this.parameters, factor);
    });
  }

  /**
   * The complete settings of `paramGroups[groupIndex]` as they are now.
   * @throws InvalidArgumentError if a program has made one of them invalid
   */
  settingsOf(groupIndex: number): Settings {
    const { params: _params, ...given } = this.#groups[groupIndex] as ParamGroup<Settings>;
    return this.#parse(given, `${this.constructor.name}.step: paramGroups[${groupIndex}]`);
  }

  /** What is kept about a parameter; undefined before its first update. */
  stateOf(parameter: Tensor): ParameterState | undefined {
    this.assertOwnState('optimizer.stateOf()');
    const kept = this.#states.get(parameter);
    if (kept !== undefined) followParameter(kept, parameter.storage);
    return kept;
  }

  /** State and settings, parameters by their index over all groups. A copy: later steps do not change it. */
  stateDict(): OptimizerState {
    this.#refuse('stateDict()');
    for (const [parameter, kept] of this.#states) followParameter(kept, parameter.storage);
    return saveOptimizerState(this.paramGroups, this.#states);
  }

  /**
   * Take over a saved state, which is copied.
   * @throws InvalidArgumentError, with nothing changed, unless groups, parameter shapes and buffers are the same
   */
  loadStateDict(state: OptimizerState): void {
    this.prepareLoadStateDict(state)();
  }

  /**
   * The first half of `loadStateDict`: check and copy everything, and change nothing. The function returned takes the copy
   * over, and cannot fail; so a caller can be sure of all that it loads before it changes anything.
   */
  prepareLoadStateDict(state: OptimizerState): () => void {
    this.#refuse('loadStateDict()');
    const loaded = this.readState(state);
    return () => {
      loaded.settings.forEach((settings, index) => Object.assign(this.paramGroups[index] as object, settings));
      for (const { buffers } of this.#states.values()) Object.values(buffers).forEach((buffer) => buffer.dispose());
      this.#states.clear();
      for (const [parameter, parameterState] of loaded.states) this.#states.set(parameter, parameterState);
    };
  }

  /** @internal What `loadStateDict` would take over, checked and copied. The caller owns the copy. */
  readState(state: OptimizerState): LoadedState<Settings> {
    const what = `${this.constructor.name}.loadStateDict`;
    return loadOptimizerState(state, this.paramGroups, this.#parse, (group) => this.stateNames(group), what);
  }

  /**
   * @internal A strategy keeps the state of these parameters from now on, so that calls which would read or change it here
   * are refused; zeroGrad, new groups, and changes of the groups' settings, are not. Undefined takes the optimizer back.
   * @param owner whose optimizer is to be used instead, for messages: 'zeroWrap'
   */
  handOver(owner: string | undefined): void {
    this.#owner = owner;
  }

  /** @internal @throws InvalidArgumentError, naming `operation`, while the state is kept by another, see `handOver` */
  assertOwnState(operation: string): void {
    if (this.#owner === undefined) return;
    throw new InvalidArgumentError(
      `${operation}: ${this.#owner} has taken this optimizer over and keeps its state, in parts on all ranks. ` +
        `Use the optimizer that ${this.#owner} returned.`,
    );
  }

  /** Functions that update the group's parameters; whatever can be refused is refused here, before the first one runs. */
  #planGroup({ params }: ParamGroup<Settings>, index: number): (() => void)[] {
    const settings = this.settingsOf(index);
    return params.flatMap((parameter) => {
      const gradient = parameter.grad?.storage;
      if (gradient === undefined) return [];
      const { storage, shape } = parameter; // throws, naming the parameter, where another rank holds it
      return [
        () => {
          updateSlice(this, { parameter: storage, gradient, kept: this.#stateToUpdate(parameter), shape }, settings);
        },
      ];
    });
  }

  #stateToUpdate(parameter: Tensor): ParameterState {
    let kept = this.#states.get(parameter);
    if (kept === undefined) this.#states.set(parameter, (kept = emptyParameterState()));
    return kept;
  }

  /** Run one call that reads or changes what others do; a second one meanwhile is refused, and so is a backward(). */
  async #exclusively<T>(call: string, run: () => Promise<T>): Promise<T> {
    this.#refuse(call);
    const release = markPendingCall(this.parameters, `optimizer.${call}`);
    this.#pendingCall = call;
    try {
      return await run();
    } finally {
      this.#pendingCall = undefined;
      release();
    }
  }

  /** @throws InvalidArgumentError if the state is kept by another, or a call that was not awaited is at work on it */
  #refuse(call: string): void {
    this.#refuseIfPending(call);
    this.assertOwnState(`optimizer.${call}`);
  }

  #refuseIfPending(call: string): void {
    if (this.#pendingCall === undefined) return;
    throw new InvalidArgumentError(
      `optimizer.${call}: the previous call was not awaited: optimizer.${this.#pendingCall} is still at work. ` +
        `Write \`await optimizer.${this.#pendingCall}\`.`,
    );
  }
}
