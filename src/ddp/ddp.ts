import { z } from 'zod';
import { InvalidArgumentError, NotInGroupError } from '../core/errors';
import { kept } from '../core/kept-promise';
import { stderrLogger, type Logger } from '../core/logger';
import { parseOptions } from '../core/options';
import type { AnyModule } from '../nn/any-module';
import { checkGroup } from '../comm/group-argument';
import { GuardedEmitter } from '../process-group/guarded-emitter';
import type { ProcessGroup } from '../process-group/process-group';
import { isGradEnabled } from '../tensor/gradient-mode';
import type { CommHook } from './comm-hooks';
import { GradSyncStrategy } from './grad-sync-strategy';
import { Join, type JoinOptions } from './join';
import { GRADIENT_EVENTS, type GradientEvents } from '../strategy/gradient-events';
import { isInNoSync, runInNoSync } from '../strategy/no-sync';
import { broadcastTensors, checkSameModule, refreshTensors, type NamedTensor } from '../strategy/parameter-sync';
import { WrappedModule, type ModuleInput, type ModuleOutput } from '../strategy/wrapped-module';
import { Reducer } from './reducer';

/** Options of DistributedDataParallel; the same on every rank, which `syncParameters` checks. */
export interface DistributedDataParallelOptions {
  /** MiB of gradients that share one collective; default 25. The first bucket is at most 1 MiB, to start early. */
  readonly bucketCapMb?: number | undefined;
  /** Copy rank 0's buffers to all ranks before each training forward; default true. */
  readonly broadcastBuffers?: boolean | undefined;
  /** Keep gradients in the buckets themselves, which saves one copy of them; default false. */
  readonly gradientAsBucketView?: boolean | undefined;
  /** Let parameters go unused in a step (zeros are averaged for them); default false, where it is an error. */
  readonly findUnusedParameters?: boolean | undefined;
  /** When gradients are averaged; default Overlapped. */
  readonly gradSync?: GradSyncStrategy | undefined;
  /** Gets what listeners throw; default: stderr, as LOCKSTEP_LOG says. May differ between ranks. */
  readonly logger?: Logger | undefined;
}

const MIB = 1024 * 1024;
const FIRST_BUCKET_BYTES = MIB;

const optionsSchema = z.strictObject({
  bucketCapMb: z.number().positive().default(25),
  broadcastBuffers: z.boolean().default(true),
  gradientAsBucketView: z.boolean().default(false),
  findUnusedParameters: z.boolean().default(false),
  gradSync: z.enum(GradSyncStrategy).default(GradSyncStrategy.Overlapped),
});

type Settings = z.output<typeof optionsSchema>;

const joinSchema = z.strictObject({
  divideByInitialWorldSize: z.boolean().default(true),
  throwOnEarlyTermination: z.boolean().default(false),
});

/**
 * Trains one module on every rank of a group as if it were trained on all their batches at once: gradients are
 * averaged over the group, bucket by bucket, while backward runs.
 *
 *     const ddp = new DistributedDataParallel(model, world.group);
 *     const optimizer = new AdamW(ddp.parameters(), { lr: 1e-3 });
 *     const loss = crossEntropy(await ddp.forward(inputs), labels);
 *     await loss.backward();
 *     await ddp.syncGradients();
 *     await optimizer.step();
 *     optimizer.zeroGrad();
 *
 * Averages have the bits of a reduction in rank order, whatever the buckets. Give every rank the same number of
 * samples a step (or use `join`): the mean of the ranks' means is the mean over all samples only then. Source: Li et
 * al., PyTorch Distributed (arXiv 2006.15704).
 */
export class DistributedDataParallel<M extends AnyModule> extends WrappedModule<M> {
  readonly #options: Settings;
  readonly #reducer: Reducer;
  #isSynchronised = false;
  #join: Join | undefined;

  /**
   * @throws InvalidArgumentError for options that do not parse, or a module without trainable parameters
   * @throws NotInGroupError on a rank outside `group`
   */
  constructor(module: M, group: ProcessGroup, options: DistributedDataParallelOptions = {}) {
    const { logger = stderrLogger, ...settings } = options;
    const emitter = new GuardedEmitter<GradientEvents>(GRADIENT_EVENTS, logger);
    super(module, group, emitter);
    checkGroup(group, 'DistributedDataParallel');
    checkModule(module);
    if (!group.isMember) {
      throw new NotInGroupError(
        `DistributedDataParallel: this rank is not a member of the group (ranks ${group.ranks.join(', ')}). Wrap the module only where group.isMember is true.`,
        { op: 'DistributedDataParallel' },
      );
    }
    this.#options = parseOptions(optionsSchema, settings, 'DistributedDataParallel');
    this.#reducer = this.#makeReducer(emitter);
  }

  /**
   * Make every rank start from rank 0's parameters and buffers. The first forward does it if you have not.
   * @throws InvalidArgumentError on every rank if names, shapes, dtypes or options differ; the group lives on
   */
  syncParameters(): Promise<void> {
    return kept(this.#syncParameters());
  }

  async #syncParameters(): Promise<void> {
    const tensors = this.#allTensors();
    await checkSameModule(tensors, { ...this.#options }, this.processGroup, 'DistributedDataParallel');
    await broadcastTensors(tensors, 0, this.processGroup);
    this.#isSynchronised = true;
    this.#reducer.areParametersEqual = true;
  }

  /** The wrapped module's forward; in training, rank 0's buffers are copied to all ranks first. */
  override async forward(...input: ModuleInput<M>): Promise<ModuleOutput<M>> {
    if (!this.#isSynchronised) await this.syncParameters();
    if (this.isTraining && isGradEnabled()) await this.#syncBuffers();
    return (await this.module.forward(...(input as never))) as ModuleOutput<M>;
  }

  /**
   * Wait until every gradient is the average over the group; averages what is not averaged yet. A second call changes
   * nothing. Call it between `backward()` and `optimizer.step()`.
   * @throws what a bucket's collective failed with
   */
  syncGradients(): Promise<void> {
    return kept(this.#reducer.synchronise());
  }

  /**
   * Run `fn` with gradients kept on this rank: what backward computes inside is added to `.grad` and averaged by the
   * next backward outside, or by `syncGradients()`. For gradient accumulation. Returns what `fn` returns.
   */
  async noSync<R>(fn: () => R | Promise<R>): Promise<R> {
    return runInNoSync(this.#reducer, fn);
  }

  /** Replace the all-reduce of a bucket, on every rank alike, between two backwards. */
  registerCommHook(hook: CommHook): void {
    if (typeof hook !== 'function') {
      throw new InvalidArgumentError(`registerCommHook: expected a function of (bucket, group), got ${typeof hook}.`);
    }
    this.#reducer.registerHook(hook);
  }

  /**
   * Run a training loop whose number of batches may differ between ranks. Ranks that run out take part with zeros
   * until all have; then all ranks get the parameters of the last one that trained. Every rank calls it. See
   * [Note: join protocol]. Inside it, buckets are averaged at the end of backward.
   */
  async join<R>(fn: () => R | Promise<R>, options: JoinOptions = {}): Promise<R> {
    const parsed = parseOptions(joinSchema, options, 'join');
    if (this.#join !== undefined) {
      throw new InvalidArgumentError(
        'join: already inside a join of the same module; leave it before starting another.',
      );
    }
    if (!this.#isSynchronised) await this.syncParameters();
    const join = new Join(this.processGroup, parsed);
    this.#join = join;
    this.#reducer.announcer = join;
    try {
      const result = await fn();
      await this.#reducer.finishPending();
      const source = await join.follow({
        forward: (active) => refreshTensors(this.#buffers(), active, this.processGroup),
        sync: (divisor) => this.#reducer.shadow(divisor),
      });
      await broadcastTensors(this.#allTensors(), source, this.processGroup);
      return result;
    } finally {
      this.#join = undefined;
      this.#reducer.announcer = undefined;
    }
  }

  /**
   * Let go of the module, so that it can be used alone or wrapped again. Gradients that are bucket views are dropped. The
   * group stays open.
   */
  detach(): void {
    this.#reducer.detach();
  }

  async #syncBuffers(): Promise<void> {
    if (!this.#options.broadcastBuffers || isInNoSync(this.#reducer)) return;
    const buffers = this.#buffers();
    if (buffers.length === 0) return;
    const source = this.#join === undefined ? 0 : await this.#join.announceForward();
    await refreshTensors(buffers, source, this.processGroup);
  }

  #makeReducer(events: GuardedEmitter<GradientEvents>): Reducer {
    const trainable = this.namedParameters()
      .map(([name, parameter]) => ({ name, parameter }))
      .filter(({ parameter }) => parameter.requiresGrad);
    if (trainable.length === 0) {
      throw new InvalidArgumentError(
        'DistributedDataParallel: the module has no trainable parameter, so there is nothing to synchronise. Parameters must be assigned to enumerable properties (not to #private fields, Maps or closures).',
        { op: 'DistributedDataParallel' },
      );
    }
    const taken = trainable.find(({ parameter }) => parameter.gradientGate !== undefined);
    if (taken !== undefined) {
      throw new InvalidArgumentError(
        `DistributedDataParallel: parameter '${taken.name}' is wrapped already, and its gradient can be averaged by one wrapper only. Call detach() on the other one first; in a mock world, build the module inside each rank's function, since one that is built outside is shared by all ranks.`,
        { op: 'DistributedDataParallel' },
      );
    }
    const { bucketCapMb, findUnusedParameters, gradientAsBucketView, gradSync } = this.#options;
    const bytes = bucketCapMb * MIB;
    return new Reducer(
      trainable,
      this.processGroup,
      {
        capacity: { bytes, firstBytes: Math.min(bytes, FIRST_BUCKET_BYTES) },
        findUnusedParameters,
        gradientAsBucketView,
        strategy: gradSync,
      },
      events,
    );
  }

  #buffers(): NamedTensor[] {
    return this.namedBuffers().map(([name, tensor]) => ({ name, tensor }));
  }

  #allTensors(): NamedTensor[] {
    return [...this.namedParameters().map(([name, tensor]) => ({ name, tensor })), ...this.#buffers()];
  }
}

/** @throws InvalidArgumentError for what JavaScript lets through */
function checkModule(module: unknown): void {
  if (typeof (module as Partial<AnyModule> | null | undefined)?.namedParameters === 'function') return;
  throw new InvalidArgumentError(
    `DistributedDataParallel: expected a Module as the first argument, got ${module === null ? 'null' : typeof module}. Extend Module and pass an instance.`,
    { op: 'DistributedDataParallel' },
  );
}
