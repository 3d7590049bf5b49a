/** One rank's end of a group: its communicator, its calls in flight, and what ends it. */
import type { CallSite } from '../../core/call-site';
import type { DataBuffer } from '../../core/dtype';
import { ClosedError, PeerLostError, asError } from '../../core/errors';
import type { Logger } from '../../core/logger';
import { describeCollective, describePointToPoint, type PointToPointOp } from '../call';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import type { ControlFailure, ControlGroup } from '../control-plane';
import type { Communicator, NcclOperation } from './addon';
import { notMovedError } from './flight-record';
import { EXPLANATION_MS, isPerhapsOfAnotherRank, nativeError } from './native-failure';
import { NcclCall, type CallListener, type CallOrigin } from './nccl-call';
import type { OpenDevice } from './open-device';
import { collectiveOperations, messageOperations, type GroupPlace } from './operations';
import type { Staging } from './staging';
import { NET_MS, Transfer } from './transfer';

/** 'before': NCCL gets a call only once all ranks have announced it. */
export type NcclChecks = 'beside' | 'before';

/** What all groups of a world share. */
export interface NcclWorld {
  readonly device: OpenDevice;
  readonly checks: NcclChecks;
  readonly logger: Logger;
}

/** How long closing a group waits for NCCL to say goodbye, which also waits for peers, before it breaks off. */
const DESTROY_MS = 5000;

/** How long ranks have to answer when data did not come by its deadline. */
const SIGN_OF_LIFE_MS = 500;

export class NcclGroup implements CallListener {
  readonly control: ControlGroup;
  readonly place: GroupPlace;
  readonly #world: NcclWorld;
  readonly #communicator: Communicator;
  readonly #calls = new Set<NcclCall>();
  /** Collectives in the order of their sequence numbers, in which they also complete. */
  readonly #collectives: NcclCall[] = [];
  /** What NCCL has been given and has not finished. */
  readonly #moving = new Set<Promise<void>>();
  #isClosed = false;
  #closing: Promise<void> | undefined;

  constructor(world: NcclWorld, control: ControlGroup, communicator: Communicator) {
    this.#world = world;
    this.control = control;
    this.#communicator = communicator;
    this.place = { rank: control.rank, size: control.ranks.globalRanks.length };
    control.onFailed((failure) => this.#onFailed(failure));
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  startCollective(checked: CheckedCollective<DataBuffer>, callSite?: CallSite): NcclCall {
    const { call, send, recv } = checked;
    const started = this.#announceCollective(checked, callSite);
    this.#begin(started, (staging) => collectiveOperations(call, this.place, staging.place(send, recv)));
    return started;
  }

  startPointToPoint(op: PointToPointOp, checked: CheckedPointToPoint<DataBuffer>, callSite?: CallSite): NcclCall {
    const announcement = this.control.announceMessages(op, checked, callSite);
    const parts = checked.parts.map(({ call }) => describePointToPoint(call)).join(', ');
    const title = `${op === 'batch' ? `batch(${parts})` : parts} of group ${this.control.id}`;
    const started = this.#track({ announcement, title, timeoutMs: checked.timeoutMs });
    this.#begin(started, (staging) =>
      messageOperations(checked.parts.map(({ call, data }) => ({ call, place: staging.placeMessage(call.op, data) }))),
    );
    return started;
  }

  /**
   * The group of the ranks that the split lists; undefined on other ranks. NCCL wants nothing else in flight on the parent, so
   * earlier calls end first, and later ones wait.
   * @throws what the split fails with
   */
  async split(checked: CheckedCollective, callSite?: CallSite): Promise<NcclGroup | undefined> {
    const call = this.#announceCollective(checked, callSite);
    call.begin();
    let child: NcclGroup | undefined;
    const launch = async (): Promise<void> => {
      await Promise.allSettled(this.#moving);
      if (call.isSettled) return;
      try {
        child = await this.#splitCommunicator(call, checked.call.ranks ?? []);
        call.moved();
      } catch (thrown) {
        this.onBroken(call, thrown);
      }
      if (call.isSettled) void child?.close(); // failed meanwhile, and nobody else knows of it
    };
    this.#world.device.launches.add(launch, call.announcement);
    try {
      await call.work;
    } catch (error) {
      void child?.close();
      throw error;
    }
    return child;
  }

  /** Fail this rank's calls in flight, tell the others that it makes no more, and let NCCL go. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  onReady(call: NcclCall): void {
    if (call.info.sequence === undefined) call.complete();
    else this.#completeInOrder();
  }

  onExpired(call: NcclCall): void {
    this.control.findSilent(SIGN_OF_LIFE_MS, (silentRanks) => {
      if (call.isSettled || call.finishing !== undefined) return;
      this.control.fail(notMovedError(call, this.#world.device, this.control.ranks, silentRanks));
    });
  }

  onBroken(call: NcclCall, thrown: unknown): void {
    if (!isPerhapsOfAnotherRank(thrown, call.isAnnounced)) return this.#break(call, thrown);
    // the control plane knows which rank is gone or called something else, and says so at once; NCCL was faster
    call.unlessSettledWithin(EXPLANATION_MS, () => this.#break(call, thrown));
  }

  onEnded(call: NcclCall): void {
    this.#calls.delete(call);
    const index = this.#collectives.indexOf(call);
    if (index < 0) return;
    this.#collectives.splice(index, 1);
    if (call.work.error !== undefined) this.#completeInOrder(); // those that it held up
  }

  #completeInOrder(): void {
    for (let [next] = this.#collectives; next?.isReady === true; [next] = this.#collectives) next.complete();
  }

  /** The announcement of the split is complete. @throws what the addon throws */
  async #splitCommunicator(call: NcclCall, ranks: readonly number[]): Promise<NcclGroup | undefined> {
    const control = this.control.child(call.announcement);
    const options = {
      color: control === undefined ? -1 : 0,
      key: Math.max(0, ranks.indexOf(this.place.rank)),
      timeoutMs: call.timeoutMs + NET_MS,
      name: control?.id ?? '',
    };
    try {
      const communicator = await this.#world.device.addon.commSplit(this.#communicator, options);
      if (control === undefined || communicator === undefined) return undefined;
      return new NcclGroup(this.#world, control, communicator);
    } catch (thrown) {
      control?.close();
      throw thrown;
    }
  }

  #break(call: NcclCall, thrown: unknown): void {
    if (call.isSettled) return; // because something else went wrong before, of which this is a consequence
    const { op, sequence, group, rank } = call.info;
    const { ranks } = this.control;
    const what = `${call.title}, on ${ranks.name(this.place.rank)}`;
    const blame = ranks.blame([this.place.rank]);
    const error = nativeError(thrown, what, this.#world.device, { op, sequence, group, rank, ...blame });
    call.fail(error); // itself, with the addon's own error as its cause; the other calls get what crosses the links
    this.control.fail(error);
  }

  #announceCollective(checked: CheckedCollective<DataBuffer>, callSite: CallSite | undefined): NcclCall {
    const announcement = this.control.announce(checked, callSite);
    const title = `${describeCollective(checked.call)}, sequence ${announcement.info.sequence} of group ${this.control.id}`;
    const call = this.#track({ announcement, title, timeoutMs: checked.timeoutMs });
    this.#collectives.push(call);
    return call;
  }

  #track(origin: Omit<CallOrigin, 'members'>): NcclCall {
    const call = new NcclCall({ ...origin, members: this.control.ranks }, this);
    this.#calls.add(call);
    return call;
  }

  #begin(call: NcclCall, plan: (staging: Staging) => NcclOperation[]): void {
    const { device, checks } = this.#world;
    let transfer: Transfer;
    try {
      const { title: label, timeoutMs } = call;
      transfer = new Transfer({ device, communicator: this.#communicator, label, timeoutMs, plan });
    } catch (thrown) {
      call.begin();
      return this.onBroken(call, thrown); // the others cannot make this call without this rank
    }
    call.begin(transfer);
    if (transfer.isEmpty) return call.moved();
    device.launches.add(() => this.#launch(call, transfer), checks === 'before' ? call.announcement : undefined);
  }

  #launch(call: NcclCall, transfer: Transfer): void {
    if (call.isSettled) return;
    const moving = transfer.launch().then(
      () => call.moved(),
      (thrown: unknown) => this.onBroken(call, thrown),
    );
    this.#moving.add(moving);
    void moving.finally(() => this.#moving.delete(moving));
  }

  #onFailed(failure: ControlFailure): void {
    if (this.isClosed) return;
    this.#abort(failure.cause.message);
    for (const call of [...this.#calls]) {
      if (call.finishing !== undefined) continue; // all its data is there
      const { op, sequence } = call.info;
      call.fail(call.announcement.error ?? failure.errorFor({ op, sequence, dueMs: call.dueMs }));
    }
  }

  #abort(reason: string): void {
    this.#world.device.abort(this.#communicator, reason);
  }

  async #close(): Promise<void> {
    this.#isClosed = true;
    const unfinished = [...this.#calls].filter(({ finishing }) => finishing === undefined);
    // before the others are told: of that, the announcements fail by what the others get
    const errors = unfinished.map((call) => call.announcement.error ?? this.#closedError(call));
    const finishing = [...this.#calls].flatMap((call) => call.finishing ?? []);
    // the announcements of the others may be complete: then nothing else tells them that this rank's data does not come
    const [first] = unfinished;
    if (first !== undefined) this.control.fail(this.#closedRankError(first), true);
    this.control.close();
    for (const [index, call] of unfinished.entries()) call.fail(errors[index] as Error);
    if (unfinished.length > 0) this.#abort('the group was closed');
    await Promise.all(finishing);
    try {
      await this.#world.device.addon.commDestroy(this.#communicator, DESTROY_MS);
    } catch (thrown) {
      this.#world.logger.info(`group ${this.control.id}: NCCL did not close it: ${asError(thrown).message}`);
    }
  }

  #closedError({ info, title }: NcclCall): Error {
    const { id, ranks } = this.control;
    const name = ranks.name(this.place.rank);
    const message = `${title}, on ${name}: this rank closed group ${id} before it was done.`;
    return new ClosedError(message, { ...info, ...ranks.blame([this.place.rank]) });
  }

  #closedRankError({ info, title }: NcclCall): Error {
    const { id, ranks } = this.control;
    const name = ranks.name(this.place.rank);
    const message = `${name} has closed group ${id}, with ${title} in flight there. Close a group when all its ranks are done with it.`;
    return new PeerLostError(message, { ...info, ...ranks.blame([this.place.rank]) });
  }
}
