import { systemClock } from '../core/clock';
import { InvalidArgumentError, asError } from '../core/errors';
import { invariant } from '../core/invariant';
import { ReduceOp } from '../core/reduce-op';
import type { ScratchPool } from '../core/scratch-pool';
import { Parameter } from '../nn/parameter';
import type { GuardedEmitter } from '../process-group/guarded-emitter';
import type { ProcessGroup } from '../process-group/process-group';
import { describeNames } from '../strategy/describe-names';
import type { BucketEvent, GradientEvents } from '../strategy/gradient-events';
import { isInNoSync } from '../strategy/no-sync';
import { BackwardSession, afterBackward } from '../tensor/backward-session';
import { noGrad } from '../tensor/gradient-mode';
import type { GradientGate } from '../tensor/gradient-leaf';
import { assertNoPendingCall } from '../tensor/pending-calls';
import { Storage } from '../tensor/storage';
import type { Tensor } from '../tensor/tensor';
import { flatTensor, type FlatUnit } from './flat-unit';
import type { UnitGradients } from './unit-gradients';

export interface GradientEngineOptions {
  readonly findUnusedParameters: boolean;
  /**
   * 'in order': unit k is launched after k-1, as soon as its gradients are there. 'at release': when stage 3 has let go of
   * the unit's parameters (`unitReleased`), which every rank does at the same place among its gathers.
   */
  readonly launch: 'in order' | 'at release';
  /**
   * [Note: buckets in flight] Where a bucket's buffer is given back when its average has arrived (stages 2 and 3), backward
   * waits for the oldest of more than so many: it computes without a pause, and on a backend that makes progress on the
   * event loop all buffers would be held at once.
   */
  readonly maxInFlight: number;
  /** Where one bucket's buffer waits for the next of its size; emptied when all averages have arrived. */
  readonly scratchPool: ScratchPool;
}

/** One outermost backward. */
interface Pass {
  readonly isSyncing: boolean;
  /** By unit; undefined until it is launched. */
  readonly launched: ({ readonly used: readonly boolean[]; readonly arrived: Promise<void> } | undefined)[];
  /** Those of `launched`, oldest first, that have not been waited for; none of them rejects. */
  readonly inFlight: Promise<void>[];
  readonly startedMs: number;
  /** Set once backward has said which leaves it will reach. */
  isInspected: boolean;
}

type SyncState =
  | { readonly kind: 'idle' }
  | { readonly kind: 'pending'; readonly finished: Promise<void> }
  | { readonly kind: 'failed'; readonly error: Error };

/**
 * Averages the gradients of all units over the group while backward runs.
 *
 * It is the gradient gate of each trainable parameter. Collectives of a synchronisation: one for each unit, the same order
 * on every rank, then (findUnusedParameters) one byte for each parameter, which tells the parameters that no rank used.
 */
export class GradientEngine implements GradientGate {
  readonly #units: readonly UnitGradients[];
  readonly #group: ProcessGroup;
  readonly #options: GradientEngineOptions;
  readonly #events: GuardedEmitter<GradientEvents>;
  readonly #placeOf = new Map<Tensor, { readonly unit: number; readonly slot: number }>();
  readonly #unsubscribe: (() => void)[] = [];
  #state: SyncState = { kind: 'idle' };
  #pass: Pass | undefined;
  #isDetached = false;

  constructor(
    units: readonly UnitGradients[],
    group: ProcessGroup,
    options: GradientEngineOptions,
    events: GuardedEmitter<GradientEvents>,
  ) {
    this.#units = units;
    this.#group = group;
    this.#options = options;
    this.#events = events;
    units.forEach((gradients, unit) => {
      gradients.unit.members.forEach(({ parameter }, slot) => {
        this.#placeOf.set(parameter, { unit, slot });
        parameter.gradientGate = this;
        this.#unsubscribe.push(parameter.onGradientReady(() => this.#gradientReady(unit, slot)));
      });
    });
  }

  /** All parameters whose gradients it averages. */
  get parameters(): Tensor[] {
    return [...this.#placeOf.keys()];
  }

  /** Whether the parameters were let go of. */
  get isDetached(): boolean {
    return this.#isDetached;
  }

  /** A backward begins: the synchronisation before must be over. */
  async prepare(): Promise<void> {
    await this.finishPending();
    this.#leaveBrokenPass();
    const pass = this.#newPass(!isInNoSync(this));
    this.#pass = pass;
    afterBackward(() => this.#endPass(pass));
  }

  /** Which leaves backward is about to reach; the gradients of the others count as there. */
  inspect(leaves: readonly Tensor[]): void {
    this.#refuseUnlisted(leaves);
    const pass = this.#pass;
    if (pass === undefined || pass.isInspected) return; // a nested backward: its leaves were announced by hiddenLeaves
    pass.isInspected = true;
    const reached = new Set(leaves);
    for (const unit of this.#units) unit.begin((parameter) => reached.has(parameter));
    this.#launchReady(pass);
  }

  /** Optimizers and clipping that were not made by zeroWrap would read what is not there. */
  async settle(operation: string): Promise<void> {
    throw new InvalidArgumentError(
      `${operation} on rank ${this.#group.rank}: the parameters belong to zeroWrap, which shards their gradients and optimizer state. Call the method of the same name of the optimizer that zeroWrap returned: optimizer.step(), optimizer.clipGradNorm(maxNorm).`,
      { rank: this.#group.rank, op: operation },
    );
  }

  /** `.grad` was set to undefined, by zeroGrad or by hand: the average goes too. */
  dropped(leaf: Tensor): void {
    const place = this.#placeOf.get(leaf);
    if (place !== undefined) this.#units[place.unit]?.drop(place.slot);
  }

  /** Wait for averages on their way. @throws what they failed with; if a gradient is this rank's own */
  async finish(operation: string): Promise<void> {
    await this.finishPending();
    this.#leaveBrokenPass();
    const local = this.#units.flatMap((unit) => unit.localNames());
    if (local.length === 0) return;
    const isOne = local.length === 1;
    throw new InvalidArgumentError(
      `${operation}: ${describeNames(local)} on rank ${this.#group.rank} ${isOne ? 'has a gradient that is' : 'have gradients that are'} not averaged over the ranks: ${isOne ? 'it was' : 'they were'} computed inside noSync(), set by hand, or left by a backward() that failed. Run the last backward() outside noSync(), or await module.syncGradients(); or drop them with zeroGrad().`,
      { rank: this.#group.rank, op: operation },
    );
  }

  /** Average whatever is not averaged yet, and wait until it is. Without any, nothing happens. */
  async synchronise(): Promise<void> {
    for (const parameter of this.#placeOf.keys()) assertNoPendingCall(parameter, 'syncGradients()');
    await this.finishPending();
    this.#leaveBrokenPass();
    if (this.#units.every((unit) => unit.localNames().length === 0)) return;
    await this.#launchRest(this.#newPass(true));
    await this.finishPending();
  }

  /** Wait for what is in flight. @throws what it failed with, then and ever after */
  async finishPending(): Promise<void> {
    if (this.#state.kind === 'pending') await this.#state.finished;
    if (this.#state.kind === 'failed') throw this.#state.error;
  }

  /** Stage 3: backward is done with the parameters of a unit. */
  unitReleased(flat: FlatUnit): void {
    const pass = this.#pass;
    const unit = this.#units.findIndex((gradients) => gradients.unit === flat);
    if (unit < 0 || pass === undefined || !pass.isSyncing || pass.launched[unit] !== undefined) return;
    if (this.#units[unit]?.missing !== 0) return;
    this.#launch(pass, unit);
    this.#holdUpBackward(pass);
  }

  /** Let go of the parameters. */
  detach(): void {
    this.#isDetached = true;
    for (const unsubscribe of this.#unsubscribe) unsubscribe();
    for (const unit of this.#units) unit.release();
    for (const parameter of this.#placeOf.keys()) {
      if (parameter.gradientGate === this) parameter.gradientGate = undefined;
    }
  }

  #newPass(isSyncing: boolean): Pass {
    return {
      isSyncing,
      launched: new Array<undefined>(this.#units.length).fill(undefined),
      inFlight: [],
      startedMs: systemClock.now(),
      isInspected: false,
    };
  }

  #gradientReady(unit: number, slot: number): void {
    const pass = this.#pass;
    const gradients = this.#units[unit];
    invariant(gradients !== undefined, `unit ${unit} exists`);
    if (pass?.launched[unit] !== undefined) this.#refuseLate(gradients.names[slot] as string);
    gradients.ready(slot, pass?.isSyncing === true);
    if (pass?.isSyncing === true) this.#launchReady(pass);
  }

  /** Launch, in order, the units whose gradients are there. */
  #launchReady(pass: Pass): void {
    if (!pass.isSyncing || this.#options.launch === 'at release') return;
    for (const [unit, gradients] of this.#units.entries()) {
      if (pass.launched[unit] !== undefined) continue;
      if (gradients.missing > 0) return;
      this.#launch(pass, unit);
      this.#holdUpBackward(pass);
    }
  }

  #launch(pass: Pass, unit: number): void {
    const gradients = this.#units[unit] as UnitGradients;
    const event = describeUnit(gradients, unit);
    const startedMs = systemClock.now();
    const launched = noGrad(() => gradients.launch());
    pass.launched[unit] = launched;
    if (this.#events.hasListener('bucketLaunched')) this.#events.emit('bucketLaunched', event);
    const report = (): void => {
      if (!this.#events.hasListener('bucketDone')) return;
      this.#events.emit('bucketDone', { ...event, durationMs: systemClock.now() - startedMs });
    };
    pass.inFlight.push(launched.arrived.then(report, () => undefined)); // #finish throws what it failed with
  }

  #holdUpBackward(pass: Pass): void {
    const excess = this.#takeExcess(pass);
    if (excess !== undefined) BackwardSession.current()?.holdUp(excess);
  }

  /** What has to arrive before more is launched, see [Note: buckets in flight]. */
  #takeExcess(pass: Pass): Promise<void> | undefined {
    return pass.inFlight.length > this.#options.maxInFlight ? pass.inFlight.shift() : undefined;
  }

  /** The end of an outermost backward. */
  async #endPass(pass: Pass): Promise<void> {
    this.#pass = undefined;
    if (pass.isSyncing) await this.#launchRest(pass);
  }

  /** Issue what has not been issued yet; does not wait until it has arrived. */
  async #launchRest(pass: Pass): Promise<void> {
    this.#refuseMissing(pass);
    const launching = this.#launchUnits(pass);
    const finished = launching.then(() => this.#finish(pass));
    finished.catch(() => undefined); // kept in #state and thrown to whoever asks next
    this.#state = { kind: 'pending', finished };
    await launching;
  }

  async #launchUnits(pass: Pass): Promise<void> {
    for (const unit of this.#units.keys()) {
      if (pass.launched[unit] !== undefined) continue;
      this.#launch(pass, unit);
      const excess = this.#takeExcess(pass);
      if (excess !== undefined) await excess;
    }
  }

  /** Ask which parameters were used, wait for everything, and hand the averages over. */
  async #finish(pass: Pass): Promise<void> {
    const used = Uint8Array.from(pass.launched.flatMap((launched) => launched?.used.map(Number) ?? []));
    const isAsked = this.#options.findUnusedParameters;
    const label = 'which parameters were used';
    const map = flatTensor(Storage.of(used, 'communication'));
    const told = isAsked ? this.#group.allReduce(map, ReduceOp.Max, { label }) : Promise.resolve();
    try {
      await Promise.all([...pass.launched.map((launched) => launched?.arrived), told]);
    } catch (thrown) {
      const error = asError(thrown);
      this.#state = { kind: 'failed', error };
      throw error;
    } finally {
      map.dispose();
      this.#options.scratchPool.clear();
    }
    let first = 0;
    for (const unit of this.#units) {
      const start = first;
      unit.deliver((slot) => used[start + slot] === 1);
      first += unit.names.length;
    }
    this.#state = { kind: 'idle' };
    if (!this.#events.hasListener('stepEnd')) return;
    const bytes = this.#units.reduce((total, unit) => total + unit.bytes, 0);
    const durationMs = systemClock.now() - pass.startedMs;
    this.#events.emit('stepEnd', { buckets: this.#units.length, bytes, durationMs });
  }

  /** A backward that failed: if units had been sent, the ranks are out of step; else its gradients are this rank's own. */
  #leaveBrokenPass(): void {
    const pass = this.#pass;
    if (pass === undefined) return;
    this.#pass = undefined;
    const sent = pass.launched.filter((launched) => launched !== undefined).length;
    if (sent === 0) {
      for (const unit of this.#units) unit.restore();
      return;
    }
    this.#fail(
      `the previous backward() on rank ${this.#group.rank} failed after ${sent} of ${this.#units.length} buckets had been sent, so the ranks are out of step. Build a new group and wrap the module again.`,
    );
  }

  /** Without findUnusedParameters every parameter has a gradient after backward, on every rank. */
  #refuseMissing(pass: Pass): void {
    if (this.#options.findUnusedParameters) return;
    const missing = this.#units.flatMap((gradients, unit) => {
      const used = pass.launched[unit]?.used;
      return gradients.names.filter((_name, slot) => !(used?.[slot] ?? gradients.hasGradient(slot)));
    });
    if (missing.length === 0) return;
    this.#fail(
      `${describeNames(missing)} got no gradient in this backward on rank ${this.#group.rank}: no operator of the loss used ${missing.length === 1 ? 'it' : 'them'}, or requiresGrad was turned off. Leave findUnusedParameters on if that is meant, or freeze the parameter on every rank before zeroWrap.`,
    );
  }

  #refuseLate(name: string): never {
    this.#fail(
      `a gradient of parameter '${name}' came on rank ${this.#group.rank} after its bucket had been sent: a nested backward() reached it without being announced. List it in the hiddenLeaves of the customFunction that runs the nested one.`,
    );
  }

  /** A trainable Parameter that nobody averages would differ between ranks. */
  #refuseUnlisted(leaves: readonly Tensor[]): void {
    for (const leaf of leaves) {
      if (!(leaf instanceof Parameter) || leaf.gradientGate !== undefined) continue;
      this.#fail(
        `backward() on rank ${this.#group.rank} reached ${leaf.name === undefined ? 'a Parameter without a name' : `the Parameter '${leaf.name}'`} of shape [${leaf.shape.join(', ')}], which zeroWrap does not shard, so its gradient would not be averaged. Assign it to a property of the module (not to a #private field, Map or closure), or set requiresGrad = false. One that was frozen when the module was wrapped has to be trainable before that.`,
      );
    }
  }

  #fail(message: string): never {
    const error = new InvalidArgumentError(message, { rank: this.#group.rank, op: 'backward' });
    this.#state = { kind: 'failed', error };
    this.#group.abort(error);
    throw error;
  }
}

function describeUnit({ bytes, unit }: UnitGradients, bucket: number): BucketEvent {
  return { bucket, numElements: unit.plan.numElements, bytes };
}
