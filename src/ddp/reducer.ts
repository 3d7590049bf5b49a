import { systemClock } from '../core/clock';
import { byteSize } from '../core/dtype';
import { InvalidArgumentError, asError, isLockstepError } from '../core/errors';
import { invariant } from '../core/invariant';
import { ReduceOp } from '../core/reduce-op';
import type { GuardedEmitter } from '../process-group/guarded-emitter';
import type { ProcessGroup } from '../process-group/process-group';
import { afterBackward } from '../tensor/backward-session';
import type { GradientGate } from '../tensor/gradient-leaf';
import { assertNoPendingCall } from '../tensor/pending-calls';
import { Tensor } from '../tensor/tensor';
import { reverseOrder, type BucketCapacity } from '../strategy/bucket-plan';
import { Parameter } from '../nn/parameter';
import { BucketSet } from './bucket-set';
import { allReduceHook, averageOver, type CommHook } from './comm-hooks';
import type { GradientEvents } from '../strategy/gradient-events';
import { GradSyncStrategy } from './grad-sync-strategy';
import { describeNames } from '../strategy/describe-names';
import { isInNoSync } from '../strategy/no-sync';
import type { NamedParameter, ReducerBucket } from './reducer-bucket';

export interface ReducerOptions {
  readonly capacity: BucketCapacity;
  readonly findUnusedParameters: boolean;
  readonly gradientAsBucketView: boolean;
  readonly strategy: GradSyncStrategy;
}

/** Asked before each synchronisation while `join` watches over uneven inputs; see join.ts. */
export interface SyncAnnouncer {
  /** Tell the other ranks that this one synchronises; returns the number of ranks to divide the sum by. */
  announceSync(): Promise<number>;
}

/** One outermost backward. */
interface Pass {
  /** True if buckets are launched as they fill. */
  readonly isOverlapped: boolean;
  readonly readyOrder: number[];
  nextBucket: number;
  readonly launched: Promise<void>[];
  readonly startedMs: number;
  /** What sums are divided by, where that is not the size of the group. */
  divisor: number | undefined;
}

function newPass(isOverlapped: boolean, divisor?: number): Pass {
  return { isOverlapped, readyOrder: [], nextBucket: 0, launched: [], startedMs: systemClock.now(), divisor };
}

type SyncState =
  | { readonly kind: 'idle' }
  | { readonly kind: 'pending'; readonly finished: Promise<void> }
  | { readonly kind: 'failed'; readonly error: Error };

/**
 * Averages the gradients of a list of parameters over a group, bucket by bucket.
 *
 * It is the gradient gate of each parameter: it learns when backward begins, and optimizers ask it whether a gradient
 * may be used. Buckets are launched in number order, bucket k after k-1, on every rank alike, followed by the map of
 * used parameters (findUnusedParameters) and, the first time, by rank 0's ready order.
 */
export class Reducer implements GradientGate {
  readonly #parameters: readonly NamedParameter[];
  readonly #itemOf: ReadonlyMap<Tensor, number>;
  readonly #group: ProcessGroup;
  readonly #options: ReducerOptions;
  readonly #events: GuardedEmitter<GradientEvents>;
  readonly #unsubscribe: (() => void)[] = [];
  #hook: CommHook = allReduceHook;
  readonly #set: BucketSet;
  #state: SyncState = { kind: 'idle' };
  #pass: Pass | undefined;
  /** Items whose gradient holds something that has not been averaged. */
  readonly #localItems = new Set<number>();
  /** 'observe' until rank 0's ready order has been sent, then the order to rebuild with, then undefined. */
  #readyOrder: 'observe' | readonly number[] | undefined = 'observe';
  announcer: SyncAnnouncer | undefined;
  /** Set once all ranks hold rank 0's parameters; averaged gradients of unequal ones would train N different models. */
  areParametersEqual = false;

  constructor(
    parameters: readonly NamedParameter[],
    group: ProcessGroup,
    options: ReducerOptions,
    events: GuardedEmitter<GradientEvents>,
  ) {
    this.#parameters = parameters;
    this.#group = group;
    this.#options = options;
    this.#events = events;
    this.#itemOf = new Map(parameters.map(({ parameter }, item) => [parameter, item]));
    this.#set = new BucketSet(parameters, options.capacity, options.gradientAsBucketView);
    parameters.forEach(({ parameter }, item) => {
      parameter.gradientGate = this;
      this.#unsubscribe.push(parameter.onGradientReady(() => this.#gradientReady(item)));
    });
  }

  registerHook(hook: CommHook): void {
    this.#hook = hook;
  }

  /** A backward begins: the one before must be over, and the buckets in their final order. */
  async prepare(): Promise<void> {
    if (!this.areParametersEqual && this.#options.strategy !== GradSyncStrategy.NoSync) throw this.#notSynchronised();
    await this.finishPending();
    this.#refuseAfterBrokenPass();
    this.#rebuild();
    for (const bucket of this.#set.buckets) bucket.startPass();
    const isSyncing = this.#options.strategy === GradSyncStrategy.Overlapped && !isInNoSync(this);
    const pass = newPass(isSyncing && this.announcer === undefined);
    this.#pass = pass;
    afterBackward(() => this.#endPass(pass, isSyncing));
  }

  /** Called by optimizers and clipping: wait for averages on their way, refuse gradients that are this rank's own. */
  async settle(operation: string): Promise<void> {
    await this.finishPending();
    if (this.#options.strategy === GradSyncStrategy.NoSync || isInNoSync(this)) return;
    const local = this.#unsynchronised();
    if (local.length === 0) return;
    throw new InvalidArgumentError(
      `${operation}: ${describeNames(local)} on rank ${this.#group.rank} ${local.length === 1 ? 'has a gradient' : 'have gradients'} that ${local.length === 1 ? 'is' : 'are'} not synchronised with the other ranks. Call await ddp.syncGradients() after backward(), or make the step inside noSync() if ranks are meant to differ.`,
      { rank: this.#group.rank, op: operation },
    );
  }

  /** Average whatever is not averaged yet, and wait until all gradients are final. Without any, nothing happens. */
  async synchronise(): Promise<void> {
    for (const { parameter } of this.#parameters) assertNoPendingCall(parameter, 'syncGradients()');
    await this.finishPending();
    this.#refuseAfterBrokenPass();
    if (this.#options.strategy === GradSyncStrategy.NoSync || this.#unsynchronised().length === 0) return;
    await this.#launchRest(newPass(false));
    await this.finishPending();
  }

  /** Take part in a synchronisation of the other ranks with zeros: this rank has no input left (join.ts). */
  async shadow(divisor: number): Promise<void> {
    await this.finishPending();
    for (const { parameter } of this.#parameters) parameter.grad = undefined;
    this.#localItems.clear();
    this.#rebuild();
    this.#launchBuckets(newPass(false, divisor));
    await this.finishPending();
    for (const { parameter } of this.#parameters) parameter.grad = undefined;
  }

  /** Wait for what is in flight. @throws what it failed with, then and ever after */
  async finishPending(): Promise<void> {
    if (this.#state.kind === 'pending') await this.#state.finished;
    if (this.#state.kind === 'failed') throw this.#state.error;
  }

  /** Let go of the parameters. */
  detach(): void {
    for (const unsubscribe of this.#unsubscribe) unsubscribe();
    for (const { parameter } of this.#parameters) {
      if (parameter.gradientGate === this) parameter.gradientGate = undefined;
    }
    this.#set.release();
  }

  #gradientReady(item: number): void {
    this.#localItems.add(item);
    const pass = this.#pass;
    if (pass === undefined) return;
    pass.readyOrder.push(item);
    const bucket = this.#set.bucketOf(item);
    bucket.missing--;
    if (!pass.isOverlapped) return;
    while (this.#set.buckets[pass.nextBucket]?.missing === 0) this.#launchNext(pass);
  }

  /** The end of an outermost backward. */
  async #endPass(pass: Pass, isSyncing: boolean): Promise<void> {
    this.#pass = undefined;
    if (!isSyncing) return;
    await this.#launchRest(pass);
  }

  /** Issue what the pass has not issued yet; does not wait for it, except for join's announcement. */
  async #launchRest(pass: Pass): Promise<void> {
    this.#refuseMissing();
    if (this.announcer !== undefined) pass.divisor = await this.announcer.announceSync();
    this.#launchBuckets(pass);
  }

  #launchBuckets(pass: Pass): void {
    while (pass.nextBucket < this.#set.buckets.length) this.#launchNext(pass);
    const used = this.#launchUsedMap();
    const order = this.#launchReadyOrder(pass);
    this.#localItems.clear();
    const finished = this.#finish(pass, used, order);
    finished.catch(() => undefined); // kept in #state and thrown to whoever asks next
    this.#state = { kind: 'pending', finished };
  }

  #launchNext(pass: Pass): void {
    const bucket = this.#set.buckets[pass.nextBucket++];
    invariant(bucket !== undefined, 'only planned buckets are launched');
    bucket.fill();
    if (this.#events.hasListener('bucketLaunched')) this.#events.emit('bucketLaunched', describeBucket(bucket));
    const done = this.#reduce(bucket, pass.divisor);
    done.catch(() => undefined); // #finish awaits it; until then a failure must not count as unhandled
    pass.launched.push(done);
  }

  async #reduce(bucket: ReducerBucket, divisor = this.#group.size): Promise<void> {
    const startedMs = systemClock.now();
    const hook = divisor === this.#group.size ? this.#hook : averageOver(divisor);
    const isLast = bucket.index === this.#set.buckets.length - 1;
    const { index, dtype, tensor, data, parameters, label } = bucket;
    try {
      await hook({ index, isLast, dtype, tensor, data, parameters, label }, this.#group);
    } catch (error) {
      throw namingBucket(error, bucket);
    }
    if (!this.#events.hasListener('bucketDone')) return;
    this.#events.emit('bucketDone', { ...describeBucket(bucket), durationMs: systemClock.now() - startedMs });
  }

  /** Which parameters any rank has used: one byte each, 1 if this rank has a gradient. */
  #launchUsedMap(): UsedMap {
    const used = Uint8Array.from(this.#parameters, ({ parameter }) => (parameter.grad === undefined ? 0 : 1));
    if (!this.#options.findUnusedParameters) return { used, arrived: Promise.resolve() };
    const arrived = this.#group.allReduce(Tensor.wrap(used), ReduceOp.Max);
    return { used, arrived };
  }

  /** The first time: rank 0 tells the order in which it saw gradients become ready. */
  #launchReadyOrder(pass: Pass): ReadyOrder | undefined {
    if (this.#readyOrder !== 'observe') return undefined;
    const seen = new Set(pass.readyOrder);
    const rest = reverseOrder(this.#parameters.length).filter((item) => !seen.has(item));
    const order = Int32Array.from([...pass.readyOrder, ...rest]);
    this.#readyOrder = undefined;
    return { order, arrived: this.#group.broadcast(Tensor.wrap(order), 0) };
  }

  async #finish(pass: Pass, map: UsedMap, readyOrder: ReadyOrder | undefined): Promise<void> {
    try {
      await Promise.all([...pass.launched, map.arrived, readyOrder?.arrived]);
      for (const bucket of this.#set.buckets) bucket.deliver((item) => map.used[item] === 1);
    } catch (thrown) {
      const error = asError(thrown);
      this.#state = { kind: 'failed', error };
      throw error;
    }
    if (readyOrder !== undefined) this.#readyOrder = Array.from(readyOrder.order);
    this.#state = { kind: 'idle' };
    if (!this.#events.hasListener('stepEnd')) return;
    this.#events.emit('stepEnd', {
      buckets: this.#set.buckets.length,
      bytes: this.#set.buckets.reduce((total, bucket) => total + bucket.bytes, 0),
      durationMs: systemClock.now() - pass.startedMs,
    });
  }

  /** Items with a gradient of this rank's own. A gradient that was zeroed since does not count. */
  #unsynchronised(): string[] {
    return this.#parameters
      .filter(({ parameter }, item) => this.#localItems.has(item) && parameter.grad !== undefined)
      .map(({ name }) => name);
  }

  /** A parameter without a gradient would let the ranks drift apart: fail in this step, on every rank. */
  #refuseMissing(): void {
    if (this.#options.findUnusedParameters) return;
    const missing = this.#parameters.filter(({ parameter }) => parameter.grad === undefined).map(({ name }) => name);
    if (missing.length === 0) return;
    this.#fail(
      new InvalidArgumentError(
        `${describeNames(missing)} got no gradient in this backward on rank ${this.#group.rank}: no operator of the loss used ${missing.length === 1 ? 'it' : 'them'}, or requiresGrad was turned off. Pass findUnusedParameters: true if that is meant, or freeze the parameter on every rank before wrapping the module.`,
        { rank: this.#group.rank, op: 'backward' },
      ),
    );
  }

  /** A backward that failed after buckets were launched has left the ranks out of step. */
  #refuseAfterBrokenPass(): void {
    const pass = this.#pass;
    this.#pass = undefined;
    if (pass === undefined || pass.launched.length === 0) return;
    this.#fail(
      new InvalidArgumentError(
        `the previous backward() on rank ${this.#group.rank} failed after ${pass.launched.length} of ${this.#set.buckets.length} buckets had been sent, so the ranks are out of step. Build a new group and wrap the module again.`,
        { rank: this.#group.rank, op: 'backward' },
      ),
    );
  }

  #notSynchronised(): Error {
    return new InvalidArgumentError(
      `backward() on rank ${this.#group.rank} reached parameters of a DistributedDataParallel that have not been made equal on all ranks: the wrapped module was called instead of the wrapper. Call ddp.forward(...), or await ddp.syncParameters() once before training.`,
      { rank: this.#group.rank, op: 'backward' },
    );
  }

  #fail(error: Error): never {
    this.#state = { kind: 'failed', error };
    this.#group.abort(error);
    throw error;
  }

  /** Once rank 0's ready order is known: the same buckets on every rank, in that order. */
  #rebuild(): void {
    const order = this.#readyOrder;
    if (order === 'observe' || order === undefined) return;
    this.#readyOrder = undefined;
    this.#set.rebuild(order);
  }

  /** Refuse a backward that reaches a trainable Parameter which nobody synchronises: it would differ between ranks. */
  inspect(leaves: readonly Tensor[]): void {
    for (const leaf of leaves) {
      if (!(leaf instanceof Parameter) || leaf.gradientGate !== undefined || this.#itemOf.has(leaf)) continue;
      this.#fail(
        new InvalidArgumentError(
          `backward() on rank ${this.#group.rank} reached ${leaf.name === undefined ? 'a Parameter without a name' : `the Parameter '${leaf.name}'`} of shape [${leaf.shape.join(', ')}], which the wrapped module does not list, so its gradient would not be averaged. Assign it to a property of the module (not to a #private field, Map or closure), or set requiresGrad = false. One that was frozen when the module was wrapped has to be trainable before that.`,
          { rank: this.#group.rank, op: 'backward' },
        ),
      );
    }
  }
}

interface UsedMap {
  readonly used: Uint8Array;
  readonly arrived: PromiseLike<void>;
}

interface ReadyOrder {
  readonly order: Int32Array;
  readonly arrived: PromiseLike<void>;
}

function describeBucket(bucket: ReducerBucket): { bucket: number; numElements: number; bytes: number } {
  return { bucket: bucket.index, numElements: bucket.bytes / byteSize(bucket.dtype), bytes: bucket.bytes };
}

/** A misuse of the bucket's buffer is a misuse of gradients: say whose. Other errors speak for themselves. */
function namingBucket(error: unknown, bucket: ReducerBucket): unknown {
  if (!isLockstepError(error, 'LOCKSTEP_INVALID_ARGUMENT')) return error;
  const message = `averaging the gradients of ${describeNames(bucket.names)}: ${error.message}`;
  return new InvalidArgumentError(message, { ...error.context, cause: error });
}
