/**
 * Stage 3 while a module runs: gathers units before they are used, and releases them after.
 *
 * [Note: gather schedule] A module's call (one run of its forward, and its way back in backward) holds the module's units
 * from before its forward to its end, and again from before its backward to its end. A call that has recorded a graph keeps
 * them in between where `reshardAfterForward` is false, and where its forward runs inside a backward (activation
 * checkpointing), since its own backward follows at once. The end of the outermost backward gives back all that is left.
 *
 * What is launched when depends on the program alone, see [Note: gathers and time], and not on which parameters a rank
 * happens to use: all ranks run the same modules in the same order.
 */
import { InvalidArgumentError } from '../core/errors';
import { invariant } from '../core/invariant';
import type { AnyModule } from '../nn/any-module';
import { mapTensors } from '../nn/map-tensors';
import type { ForwardCall } from '../nn/module-hooks';
import { BackwardSession } from '../tensor/backward-session';
import { isGradEnabled } from '../tensor/gradient-mode';
import { GatherOrder } from './gather-order';
import type { Gatherable, GatherUnit, Holder } from './gather-unit';

export interface GatherScheduleOptions {
  /** The whole model: one call of it is one pass, whose order the next one is expected to repeat. */
  readonly root: AnyModule;
  /** Release units after forward, and gather them again before backward. */
  readonly reshardAfterForward: boolean;
  /** While one unit is used, gather the one that came after it last time. */
  readonly prefetch: boolean;
  /** Told in backward when the last call that needs a unit is done with it, for now. */
  readonly onBackwardDone?: ((unit: GatherUnit) => void) | undefined;
}

/** A unit with the modules whose calls need it. */
export interface ScheduledUnit {
  readonly unit: GatherUnit;
  readonly modules: readonly AnyModule[];
}

/** One outermost backward. */
interface BackwardPass {
  /** What has to be given back in the end. */
  readonly calls: Set<ForwardCall>;
  /** By unit, how many calls backward is inside of. */
  readonly depth: Map<GatherUnit, number>;
}

export class GatherSchedule {
  readonly units: readonly GatherUnit[];
  readonly #options: GatherScheduleOptions;
  readonly #unitsOf = new Map<AnyModule, GatherUnit[]>();
  readonly #forwardOrder = new GatherOrder();
  readonly #backwardOrder = new GatherOrder();
  /** Forwards that run now, outside of any backward. */
  readonly #forwards = new Set<ForwardCall>();
  readonly #backwards = new Map<BackwardSession, BackwardPass>();
  /** Calls that keep their units until their backward. */
  readonly #kept = new Set<ForwardCall>();
  readonly #scopes = new Set<Holder>();
  readonly #removals: (() => void)[] = [];

  /** Hang the schedule on the modules; all units are released now. */
  constructor(scheduled: readonly ScheduledUnit[], options: GatherScheduleOptions) {
    this.units = scheduled.map(({ unit }) => unit);
    this.#options = options;
    for (const { unit, modules } of scheduled) {
      for (const module of modules) {
        const units = this.#unitsOf.get(module);
        if (units === undefined) this.#unitsOf.set(module, [unit]);
        else units.push(unit);
      }
    }
    for (const module of new Set([options.root, ...this.#unitsOf.keys()])) this.#attach(module);
  }

  /** Make all units whole for good, and take all hooks away. */
  async detach(): Promise<void> {
    await holdAll(this.units, this);
    for (const remove of this.#removals.splice(0)) remove();
  }

  /** Run `fn` with the units of `flats` whole; `beforeRelease` runs at the end, while they still are. */
  async withWhole<R>(flats: readonly Gatherable[], fn: () => R | Promise<R>, beforeRelease: () => void): Promise<R> {
    const units = this.units.filter((unit) => unit.hasAny(flats));
    const scope: Holder = {};
    this.#scopes.add(scope);
    try {
      await holdAll(units, scope);
      for (const unit of units) await unit.settle(); // a gather that was dropped must not arrive on top of changes
      try {
        return await fn();
      } finally {
        beforeRelease();
      }
    } finally {
      for (const unit of units) unit.giveBack(scope);
      this.#scopes.delete(scope);
    }
  }

  /**
   * Release everything and wait for what is in flight, since parts are about to change.
   * @throws InvalidArgumentError while a unit is in use
   */
  async quiesce(what: string): Promise<void> {
    const busy =
      this.#scopes.size > 0
        ? 'withFullParameters()'
        : this.#backwards.size > 0
          ? 'backward()'
          : this.#forwards.size > 0
            ? 'a forward'
            : undefined;
    if (busy !== undefined) {
      throw new InvalidArgumentError(
        `${what}: ${busy} is still at work on parameters of stage 3, which would see half of the change. Await it, and leave withFullParameters(), first.`,
      );
    }
    this.#giveBackKept();
    for (const unit of this.units) {
      unit.drop();
      await unit.settle();
    }
  }

  #attach(module: AnyModule): void {
    this.#removals.push(
      module.registerForwardPreHook((_module, _input, call) => this.#beforeForward(module, call)),
      module.registerForwardHook((_module, _input, output, call) => this.#noteGraph(call, output)),
      module.registerForwardCleanup((_module, call) => this.#afterForward(module, call)),
      module.registerBackwardPreHook((_module, call) => this.#beforeBackward(module, call)),
      module.registerBackwardHook((_module, call) => this.#afterBackward(module, call)),
    );
  }

  async #beforeForward(module: AnyModule, call: ForwardCall): Promise<void> {
    const session = BackwardSession.current();
    if (session !== undefined) {
      this.#passOf(session).calls.add(call);
      return this.#need(module, call, this.#backwardOrder);
    }
    if (this.#forwards.size === 0) this.#forwardOrder.begin();
    this.#forwards.add(call);
    return this.#need(module, call, this.#forwardOrder);
  }

  /** The forward has succeeded: does its backward follow so soon that the units had better stay? */
  #noteGraph(call: ForwardCall, output: unknown): void {
    const isRecompute = BackwardSession.current() !== undefined;
    if (this.#options.reshardAfterForward && !isRecompute) return;
    if (isGradEnabled() && hasGraph(output)) this.#kept.add(call);
  }

  async #afterForward(module: AnyModule, call: ForwardCall): Promise<void> {
    if (!this.#kept.has(call)) this.#giveBack(module, call);
    if (!this.#forwards.delete(call) || this.#forwards.size > 0) return;
    this.#forwardOrder.end();
    await this.#dropUnused();
  }

  #beforeBackward(module: AnyModule, call: ForwardCall): Promise<void> {
    const session = BackwardSession.current();
    invariant(session !== undefined, 'backward hooks run inside a backward');
    const { calls, depth } = this.#passOf(session);
    calls.add(call);
    for (const unit of this.#unitsOf.get(module) ?? []) depth.set(unit, (depth.get(unit) ?? 0) + 1);
    return this.#need(module, call, this.#backwardOrder);
  }

  #afterBackward(module: AnyModule, call: ForwardCall): void {
    this.#giveBack(module, call);
    const session = BackwardSession.current();
    invariant(session !== undefined, 'backward hooks run inside a backward');
    const { depth } = this.#passOf(session);
    for (const unit of this.#unitsOf.get(module) ?? []) {
      const left = (depth.get(unit) ?? 0) - 1;
      depth.set(unit, left);
      if (left === 0) this.#options.onBackwardDone?.(unit);
    }
  }

  /** Hold the module's units for a call, launch the gather that is expected next, and wait for the units. */
  async #need(module: AnyModule, call: ForwardCall, order: GatherOrder): Promise<void> {
    const units = this.#unitsOf.get(module) ?? [];
    const needed = units.filter((unit) => !unit.isHeld);
    const arrivals = holdAll(units, call);
    const next = needed.map((unit) => order.note(unit)).at(-1);
    if (this.#options.prefetch) next?.prefetch();
    await arrivals;
  }

  #giveBack(module: AnyModule, call: ForwardCall): void {
    this.#kept.delete(call);
    for (const unit of this.#unitsOf.get(module) ?? []) unit.giveBack(call);
  }

  #passOf(session: BackwardSession): BackwardPass {
    const known = this.#backwards.get(session);
    if (known !== undefined) return known;
    const pass: BackwardPass = { calls: new Set(), depth: new Map() };
    this.#backwards.set(session, pass);
    this.#backwardOrder.begin();
    session.addCallback(() => this.#dropUnused());
    session.addCleanup(() => this.#endBackward(session, pass));
    return pass;
  }

  #endBackward(session: BackwardSession, { calls }: BackwardPass): void {
    this.#backwardOrder.end();
    this.#backwards.delete(session);
    for (const unit of this.units) {
      for (const call of calls) unit.giveBack(call);
      unit.drop();
    }
    this.#giveBackKept();
  }

  #giveBackKept(): void {
    for (const unit of this.units) for (const call of this.#kept) unit.giveBack(call);
    this.#kept.clear();
  }

  /** Let go of prefetches in vain, and wait until they are gone. */
  async #dropUnused(): Promise<void> {
    for (const unit of this.units) unit.drop();
    for (const unit of this.units) if (!unit.isHeld) await unit.settle();
  }
}

/** Hold all units, launched in this order; settles when all have. @throws the first failure */
async function holdAll(units: readonly GatherUnit[], holder: Holder): Promise<void> {
  const arrivals = await Promise.allSettled(units.map((unit) => unit.hold(holder)));
  const failed = arrivals.find((arrival) => arrival.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}

function hasGraph(output: unknown): boolean {
  let isFound = false;
  mapTensors(output, (tensor) => {
    isFound ||= tensor.requiresGrad;
    return tensor;
  });
  return isFound;
}
