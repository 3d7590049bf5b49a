import { fromHere } from '../core/call-site';
import { InvalidArgumentError } from '../core/errors';
import { kept } from '../core/kept-promise';
import type { AnyModule } from '../nn/any-module';
import type { GuardedEmitter } from '../process-group/guarded-emitter';
import type { ProcessGroup } from '../process-group/process-group';
import type { GradientEvents } from '../strategy/gradient-events';
import { isInNoSync, runInNoSync } from '../strategy/no-sync';
import { refreshTensors } from '../strategy/parameter-sync';
import { WrappedModule, type ModuleInput, type ModuleOutput } from '../strategy/wrapped-module';
import { partedState, type PartedState } from '../strategy/state-parts';
import { isGradEnabled } from '../tensor/gradient-mode';
import type { BoundaryScale } from './boundary-scale';
import type { FlatUnit } from './flat-unit';
import { revokeFullAccess } from './full-parameters';
import type { GatherSchedule } from './gather-schedule';
import type { GradientEngine } from './gradient-engine';
import { ModuleParts } from './module-parts';
import { runInPrecision } from './precision';
import type { ZeroSettings } from './zero-options';

/** What zeroWrap hands to a ZeroModule. */
export interface ZeroModuleParts<M extends AnyModule> {
  readonly module: M;
  readonly group: ProcessGroup;
  readonly settings: ZeroSettings;
  readonly engine: GradientEngine;
  readonly events: GuardedEmitter<GradientEvents>;
  readonly flats: readonly FlatUnit[];
  /** Of float16. */
  readonly boundary: BoundaryScale | undefined;
  /** Of stage 3. */
  readonly schedule: GatherSchedule | undefined;
  /** Bring the optimizer's state to the host, and let go of the device's memory. */
  readonly bringDown: () => Promise<void>;
  /** Let go of the module and the optimizer that were passed in. */
  readonly giveBack: () => void;
}

/**
 * A module whose training state is sharded over a group; made by zeroWrap. It has the type of the module that it wraps:
 * forward, parameters and state under the same names.
 *
 * Give every rank the same number of samples a step: the mean of the ranks' means is the mean over all samples only then.
 */
export class ZeroModule<M extends AnyModule> extends WrappedModule<M> {
  readonly #settings: ZeroSettings;
  readonly #engine: GradientEngine;
  readonly #flats: readonly FlatUnit[];
  readonly #boundary: BoundaryScale | undefined;
  readonly #schedule: GatherSchedule | undefined;
  readonly #bringDown: () => Promise<void>;
  readonly #giveBack: () => void;

  /** @internal Use zeroWrap. */
  constructor(parts: ZeroModuleParts<M>) {
    const { module, group, settings, engine, events, flats, boundary, schedule, bringDown, giveBack } = parts;
    super(module, group, events);
    this.#settings = settings;
    this.#engine = engine;
    this.#flats = flats;
    this.#boundary = boundary;
    this.#schedule = schedule;
    this.#bringDown = bringDown;
    this.#giveBack = giveBack;
  }

  /**
   * The wrapped module's forward, under `precision` inside autocast and with outputs converted back to float32; in training,
   * rank 0's buffers are copied to all ranks first.
   * @throws InvalidArgumentError if an `optimizer.step()` was not awaited
   */
  override async forward(...input: ModuleInput<M>): Promise<ModuleOutput<M>> {
    return fromHere(async (): Promise<ModuleOutput<M>> => {
      this.#refuseDuringStep();
      if (this.isTraining && isGradEnabled()) await this.#syncBuffers();
      const run = (...entered: ModuleInput<M>): Promise<ModuleOutput<M>> => {
        return this.module.forward(...(entered as never)) as Promise<ModuleOutput<M>>;
      };
      return runInPrecision(this.module, this.#settings.precision, this.#boundary, input, run);
    });
  }

  /** Stage 3: the parameters in parts, for checkpoints. Below that every rank holds them whole. */
  get [partedState](): PartedState | undefined {
    if (this.#schedule === undefined) return undefined;
    return new ModuleParts(this.module, this.#flats, this.processGroup);
  }

  /**
   * Wait until every gradient is averaged over the group; averages what is not averaged yet. `optimizer.step()` and
   * clipping wait by themselves, so this is needed only after a last backward inside noSync.
   * @throws what a collective failed with
   */
  syncGradients(): Promise<void> {
    return kept(fromHere(() => this.#engine.synchronise()));
  }

  /**
   * Run `fn` with gradients kept on this rank: what backward computes inside is added to `.grad`, whole at every stage, and
   * averaged once by the next backward outside. For gradient accumulation. Returns what `fn` returns.
   */
  async noSync<R>(fn: () => R | Promise<R>): Promise<R> {
    return runInNoSync(this.#engine, fn);
  }

  /**
   * Let go of the module, so that it can be used alone or wrapped again; gradients are dropped. The optimizer that was
   * wrapped with it works again, without state; that of the one which came with the module can still be had, by
   * `stateDict()`, and nothing else; it is in host memory from then on. Every rank calls it. The group stays open.
   */
  async detach(): Promise<void> {
    if (this.#engine.isDetached) return; // what it gave back may have another wrapper by now
    await this.#engine.finishPending();
    await this.#schedule?.quiesce('detach');
    await this.#bringDown();
    await this.#schedule?.detach();
    for (const flat of this.#flats) flat.stayWhole();
    for (const part of this.modules()) revokeFullAccess(part);
    this.#engine.detach();
    this.#giveBack();
  }

  async #syncBuffers(): Promise<void> {
    if (!this.#settings.broadcastBuffers || isInNoSync(this.#engine)) return;
    const buffers = this.namedBuffers().map(([name, tensor]) => ({ name, tensor }));
    if (buffers.length > 0) await refreshTensors(buffers, 0, this.processGroup);
  }

  #refuseDuringStep(): void {
    const pending = this.#engine.parameters.find(({ leaf }) => leaf.pendingCall !== undefined)?.leaf.pendingCall;
    if (pending === undefined) return;
    throw new InvalidArgumentError(
      `forward on rank ${this.processGroup.rank}: the previous call was not awaited: ${pending} is still at work on the parameters. Write \`await\` before it.`,
      { rank: this.processGroup.rank, op: 'forward' },
    );
  }
}
