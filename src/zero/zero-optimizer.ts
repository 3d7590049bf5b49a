import { fromHere } from '../core/call-site';
import { InvalidArgumentError } from '../core/errors';
import { ReduceOp } from '../core/reduce-op';
import { clipCoefficient, scaleInPlace, startNorm, type ClipGradNormOptions } from '../optim/clip-grad-norm';
import { storeFloats } from '../optim/float-buffer';
import { GradientNorm } from '../optim/gradient-norm';
import type { Optimizer } from '../optim/optimizer';
import type { OptimizerState } from '../optim/optimizer-state';
import type { ParamGroup } from '../optim/param-group';
import type { ScalableOptimizer } from '../optim/scalable-optimizer';
import type { ProcessGroup } from '../process-group/process-group';
import { partedState, type PartedState } from '../strategy/state-parts';
import { describeTensor } from '../tensor/describe';
import { noGrad } from '../tensor/gradient-mode';
import { kernels } from '../tensor/kernels/kernels';
import { floatsOf } from '../tensor/operators/floats';
import { assertNoPendingCall, markPendingCall } from '../tensor/pending-calls';
import { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import type { BoundaryScale } from './boundary-scale';
import { flatTensor, type FlatUnit } from './flat-unit';
import type { GatherSchedule } from './gather-schedule';
import type { GradientEngine } from './gradient-engine';
import { OptimizerParts } from './optimizer-parts';
import type { ShardedState } from './sharded-state';
import type { UnitGradients } from './unit-gradients';

/** What zeroWrap hands to a ZeroOptimizer. */
export interface ZeroOptimizerParts<Settings extends { lr: number }> {
  readonly inner: Optimizer<Settings>;
  readonly units: readonly UnitGradients[];
  /** Of what this rank owns. */
  readonly state: ShardedState;
  readonly engine: GradientEngine;
  readonly group: ProcessGroup;
  /** Of float16. */
  readonly boundary: BoundaryScale | undefined;
  /** Of stage 3. */
  readonly schedule: GatherSchedule | undefined;
  /** The names of the module's parameters. */
  readonly nameOf: (parameter: Tensor) => string;
  /** False in stage 0, where every rank has everything. */
  readonly isSharded: boolean;
}

/** A trainable parameter that the optimizer updates. */
interface Target {
  readonly gradients: UnitGradients;
  readonly slot: number;
  readonly parameter: Tensor;
  readonly groupIndex: number;
}

/**
 * An optimizer of which each rank keeps the state of its own parts; made by zeroWrap. Used as the optimizer that it wraps:
 * its groups are the same objects, so schedulers and changes of `paramGroups[i].lr` work on either.
 *
 * The calls below are collectives, except zeroGrad: every rank makes them, in the same order.
 */
export class ZeroOptimizer<Settings extends { lr: number } = { lr: number }> implements ScalableOptimizer {
  readonly #inner: Optimizer<Settings>;
  readonly #units: readonly UnitGradients[];
  readonly #engine: GradientEngine;
  readonly #group: ProcessGroup;
  readonly #boundary: BoundaryScale | undefined;
  readonly #schedule: GatherSchedule | undefined;
  readonly #isSharded: boolean;
  readonly #state: ShardedState;
  readonly #parts: OptimizerParts<Settings>;
  #pendingCall: string | undefined;

  /** @internal Use zeroWrap. */
  constructor({
    inner,
    units,
    state,
    engine,
    group,
    boundary,
    schedule,
    nameOf,
    isSharded,
  }: ZeroOptimizerParts<Settings>) {
    this.#inner = inner;
    this.#units = units;
    this.#state = state;
    this.#engine = engine;
    this.#group = group;
    this.#boundary = boundary;
    this.#schedule = schedule;
    this.#isSharded = isSharded;
    const flats = units.map(({ unit }) => unit);
    this.#parts = new OptimizerParts({ inner, flats, state, group, boundary, nameOf });
  }

  /** The groups of the wrapped optimizer; their settings may be changed between steps. */
  get paramGroups(): readonly ParamGroup<Settings>[] {
    return this.#inner.paramGroups;
  }

  /** All parameters, group by group. */
  get parameters(): Tensor[] {
    return this.#inner.parameters;
  }

  /**
   * Update every parameter that any rank has a gradient of: each rank its own part, which the others get then. Waits for
   * gradients whose averages are on their way. A rejection before the update leaves parameters and state as they were.
   * @throws InvalidArgumentError if a previous call, or a backward(), was not awaited; if a gradient is not averaged; if a
   *   group's settings are no longer valid
   */
  async step(): Promise<void> {
    await this.#exclusively('step()', async () => {
      await this.#engine.finish('optimizer.step()');
      await this.#schedule?.quiesce('optimizer.step()');
      const settings = this.paramGroups.map((_group, index) => this.#inner.settingsOf(index));
      const targets = this.#targets();
      const factor = await this.#gradientFactor('optimizer.step()');
      this.#boundary?.finishStep();
      if (this.isStepSkipped) return;
      const updates = targets.map((target) => ({ ...target, settings: settings[target.groupIndex] as Settings }));
      await this.#state.update(this.#inner, updates, factor);
      const changed = new Map<FlatUnit, number>();
      for (const { gradients } of targets) changed.set(gradients.unit, (changed.get(gradients.unit) ?? 0) + 1);
      await this.#publish(changed);
    });
  }

  /** The factor that gradients are multiplied by in backward under precision 'float16'; else undefined. */
  get lossScale(): number | undefined {
    return this.#boundary?.scale;
  }

  /**
   * Bytes of parameters, masters and optimizer state that this rank keeps on its device; 0 with shardDevice 'cpu', before the
   * first step, and after detach(). `memory.stats()` does not count them: with 'cuda' its 'optimizer' is a copy of this rank's
   * part of the parameters, to see what the program writes, and what has yet to go up (first masters, loaded state).
   */
  get deviceBytes(): number {
    return this.#state.deviceBytes;
  }

  /** Under precision 'float16': whether the last step was left out, on all ranks, since a gradient had overflowed. */
  get isStepSkipped(): boolean {
    return this.#boundary?.hasOverflowed === true;
  }

  /** Drop all gradients, of the whole module; also those that are on their way. */
  zeroGrad(): void {
    this.#refuse('zeroGrad()');
    const parameters = this.#allParameters();
    for (const parameter of parameters) assertNoPendingCall(parameter, 'zeroGrad');
    for (const parameter of parameters) parameter.grad = undefined;
  }

  /**
   * Scale all gradients by min(1, maxNorm / (norm + 1e-6)), where norm is that of all of them together, over all ranks, and
   * return the norm before. The same bits as the function `clipGradNorm` on one rank with the whole gradients.
   */
  async clipGradNorm(maxNorm: number, options?: ClipGradNormOptions): Promise<number> {
    return this.#exclusively('clipGradNorm()', async () => {
      const norm = startNorm(maxNorm, options, 'optimizer.clipGradNorm()');
      await this.#engine.finish('optimizer.clipGradNorm()');
      const factor = await this.#gradientFactor('optimizer.clipGradNorm()');
      const averages = this.#averages();
      for (const average of averages) norm.add(average);
      const total = (await this.#overAllRanks(norm)).value * factor;
      const coefficient = clipCoefficient(total, maxNorm);
      if (coefficient === 1) return total;
      if (factor === 1) averages.forEach((average) => scaleInPlace(average, coefficient));
      else this.#boundary?.multiply(coefficient);
      return total;
    });
  }

  /**
   * Multiply all gradients by `factor`; 16-bit ones become float32. A GradScaler calls it.
   * @returns whether a gradient on any rank is NaN or infinite afterwards
   */
  async unscaleGradients(factor: number): Promise<boolean> {
    return this.#exclusively('unscaleGradients()', async () => {
      await this.#engine.finish('optimizer.unscaleGradients()');
      this.#boundary?.enterUnscale();
      for (const gradients of this.#units) gradients.widen();
      let isFinite = true;
      for (const average of this.#averages()) {
        const values = floatsOf(average);
        isFinite = kernels.scaleFinite(values, values, factor) && isFinite;
        storeFloats(values, average);
      }
      return this.#isTrueAnywhere(!isFinite);
    });
  }

  /**
   * The whole state, on every rank, in the form of `Optimizer.stateDict`: it loads into a plain optimizer as well. For states
   * that one rank can hold; saveCheckpoint writes parts.
   */
  async stateDict(): Promise<OptimizerState> {
    return this.#alone('stateDict()', () => this.#parts.gatherWhole());
  }

  /**
   * Take this rank's parts of a whole state, the same on every rank.
   * @throws InvalidArgumentError, with nothing changed, unless groups, parameter shapes and buffers are the same
   */
  loadStateDict(state: OptimizerState): void {
    this.#refuse('loadStateDict()');
    this.#parts.loadWhole(state);
  }

  /** The state in parts, for checkpoints. */
  get [partedState](): PartedState {
    return this.#parts;
  }

  /**
   * What the stored gradients are to be multiplied by, see [Note: boundary scale]. The first call since a backward asks all
   * ranks whether one of them has overflowed.
   */
  async #gradientFactor(operation: string): Promise<number> {
    const boundary = this.#boundary;
    if (boundary === undefined) return 1;
    if (boundary.needsVerdict(operation)) {
      boundary.judge(await this.#isTrueAnywhere(!this.#averages().every(isFinite)));
    }
    return boundary.gradientFactor;
  }

  /** The parameters that this step updates: those with a gradient, in the same order on every rank. */
  #targets(): Target[] {
    const groupOf = new Map<Tensor, number>();
    this.paramGroups.forEach(({ params }, index) => params.forEach((parameter) => groupOf.set(parameter, index)));
    const targets = this.#units.flatMap((gradients) =>
      gradients.unit.members.flatMap(({ parameter }, slot) => {
        const groupIndex = groupOf.get(parameter);
        groupOf.delete(parameter);
        if (groupIndex === undefined || !gradients.hasAverage(slot)) return [];
        return [{ gradients, slot, parameter, groupIndex }];
      }),
    );
    const unknown = [...groupOf.keys()].find((parameter) => parameter.grad !== undefined);
    if (unknown === undefined) return targets;
    throw new InvalidArgumentError(
      `optimizer.step(): ${describeTensor(unknown)} has a gradient, but was frozen, or not in the module, when zeroWrap sharded it. Make it trainable before zeroWrap.`,
    );
  }

  /** This rank's averages of the parameters that the optimizer updates. */
  #averages(): Storage[] {
    return this.#targets().flatMap(({ gradients, slot }) => {
      const piece = gradients.unit.pieceOf(slot);
      return (piece === undefined ? undefined : gradients.averageOf(piece)) ?? [];
    });
  }

  /** Give the other ranks this rank's new values, where they keep them. @param changed with how many were updated */
  async #publish(changed: ReadonlyMap<FlatUnit, number>): Promise<void> {
    const gathers: Promise<void>[] = [];
    for (const [unit, numUpdates] of changed) {
      unit.countStep(numUpdates);
      unit.markChanged();
      if (unit.isWhole) gathers.push(noGrad(() => unit.gather()));
    }
    await Promise.all(gathers);
  }

  /** The norm of all ranks' parts together. */
  async #overAllRanks(norm: GradientNorm): Promise<GradientNorm> {
    if (!this.#isSharded || this.#group.size === 1) return norm;
    const { values, op } = norm.toParts();
    const tensor = flatTensor(Storage.of(values, 'communication'));
    try {
      await this.#group.allReduce(tensor, op, { label: 'norm of all gradients' });
    } finally {
      tensor.dispose();
    }
    const total = new GradientNorm(norm.normType);
    total.addParts(values);
    return total;
  }

  async #isTrueAnywhere(isTrue: boolean): Promise<boolean> {
    if (!this.#isSharded || this.#group.size === 1) return isTrue;
    const flag = Uint8Array.of(Number(isTrue));
    const tensor = flatTensor(Storage.of(flag, 'communication'));
    try {
      await this.#group.allReduce(tensor, ReduceOp.Max, { label: 'whether a gradient overflowed' });
    } finally {
      tensor.dispose();
    }
    return flag[0] === 1;
  }

  #allParameters(): Tensor[] {
    return [...new Set([...this.#engine.parameters, ...this.parameters])];
  }

  /** Run one call that reads or changes what others do; a second one meanwhile is refused, and so is a backward(). */
  async #exclusively<T>(call: string, run: () => Promise<T>): Promise<T> {
    this.#refuse(call);
    return this.#alone(call, run);
  }

  async #alone<T>(call: string, run: () => Promise<T>): Promise<T> {
    this.#refuseIfPending(call);
    const release = markPendingCall(this.#allParameters(), `optimizer.${call}`);
    this.#pendingCall = call;
    try {
      return await fromHere(run);
    } finally {
      this.#pendingCall = undefined;
      release();
    }
  }

  /** @throws InvalidArgumentError once the module is detached, or while a call that was not awaited is at work */
  #refuse(call: string): void {
    this.#refuseIfPending(call);
    if (!this.#engine.isDetached) return;
    throw new InvalidArgumentError(
      `optimizer.${call}: module.detach() has let go of the parameters. Use the optimizer that was passed to zeroWrap, which works again; or call zeroWrap again and use the one that it returns.`,
    );
  }

  #refuseIfPending(call: string): void {
    if (this.#pendingCall === undefined) return;
    throw new InvalidArgumentError(
      `optimizer.${call}: the previous call was not awaited: optimizer.${this.#pendingCall} is still at work. Write \`await optimizer.${this.#pendingCall}\`.`,
    );
  }
}

/** Whether no element is NaN or infinite. */
function isFinite(storage: Storage): boolean {
  const values = floatsOf(storage);
  return kernels.scaleFinite(values, values, 1);
}
