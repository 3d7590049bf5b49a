import { nextTurn, systemClock, type Timer } from '../../core/clock';
import { asError } from '../../core/errors';
import type { GroupRanks } from '../../core/group-ranks';
import { Work, type WorkHandle, type WorkInfo } from '../../core/work';
import type { Transfer } from './transfer';

/** A timer this late was held up by this process's own computing, and so was what NCCL and the other ranks have to say. */
const LATE_MS = 20;

/** Told what becomes of a call. */
export interface CallListener {
  /** All that is left is to complete it, in its turn. */
  onReady(call: NcclCall): void;
  /** Its deadline has passed: all ranks have arrived, and its data has not. */
  onExpired(call: NcclCall): void;
  /** The device or NCCL failed. */
  onBroken(call: NcclCall, thrown: unknown): void;
  /** It has settled. */
  onEnded(call: NcclCall): void;
}

export interface CallOrigin {
  /** Settles once all ranks that take part have announced the call. */
  readonly announcement: Work;
  /** As 'allReduce(float32[4], Sum), sequence 3 of group world'. */
  readonly title: string;
  readonly members: GroupRanks;
  readonly timeoutMs: number;
}

/**
 * A call in flight.
 *
 * [Note: two halves of a call] It is announced on the control plane, where ranks find out that they disagree or that one is
 * missing, and its data moves, each without waiting for the other. It is done when both are; then, and no earlier, results are
 * copied to host memory. The deadline of the first half is the control plane's; what is left of it then bounds the second.
 */
export class NcclCall {
  readonly info: WorkInfo;
  readonly title: string;
  readonly timeoutMs: number;
  /** On the system clock. */
  readonly dueMs: number;
  readonly announcement: Work;
  readonly members: GroupRanks;
  readonly #listener: CallListener;
  readonly #handle: WorkHandle;
  #transfer: Transfer | undefined;
  #isAnnounced = false;
  #isMoved = false;
  #finishing: Promise<void> | undefined;
  #isReady = false;
  /** Of the deadline. */
  #timer: Timer | undefined;
  #explanationTimer: Timer | undefined;

  constructor({ announcement, title, members, timeoutMs }: CallOrigin, listener: CallListener) {
    this.info = announcement.info;
    this.title = title;
    this.timeoutMs = timeoutMs;
    this.dueMs = systemClock.now() + timeoutMs;
    this.announcement = announcement;
    this.members = members;
    this.#listener = listener;
    this.#handle = Work.create(announcement.info);
  }

  get work(): Work {
    return this.#handle.work;
  }

  get isSettled(): boolean {
    return this.work.isCompleted;
  }

  /** All ranks have come; this rank's data may still be on its way. */
  get isAnnounced(): boolean {
    return this.#isAnnounced;
  }

  /** Both halves are done: it can no longer fail because of another rank. Settles when its results are where they belong. */
  get finishing(): Promise<void> | undefined {
    return this.#finishing;
  }

  get isReady(): boolean {
    return this.#isReady;
  }

  /** @param transfer released when the call ends; undefined: `moved` is called by somebody else, or by `hasNothingToMove` */
  begin(transfer?: Transfer): void {
    this.#transfer = transfer;
    void this.announcement.then(
      () => this.#announced(),
      (error: unknown) => this.fail(asError(error)),
    );
  }

  /** NCCL is done with it, or had nothing to do. */
  moved(): void {
    this.#isMoved = true;
    if (this.#isAnnounced) this.#finish();
  }

  complete(): void {
    this.#handle.complete();
    this.#end();
  }

  /** Only the first settlement counts. */
  fail(error: Error): void {
    if (this.isSettled) return;
    this.#handle.fail(error);
    this.#end();
  }

  /** Call `act` after `delayMs`, unless the call has settled by then. */
  unlessSettledWithin(delayMs: number, act: () => void): void {
    if (!this.isSettled) this.#explanationTimer ??= systemClock.schedule(act, delayMs, true);
  }

  #announced(): void {
    if (this.isSettled) return;
    this.#isAnnounced = true;
    if (this.#isMoved) return this.#finish();
    const remainingMs = Math.max(0, this.dueMs - systemClock.now());
    this.#timer = systemClock.schedule(() => this.#due(), remainingMs, true);
  }

  /** What arrived while this process was computing is looked at first. */
  #due(): void {
    const expire = (): void => this.#listener.onExpired(this);
    if (systemClock.now() - this.dueMs < LATE_MS) return expire();
    this.#timer = nextTurn(() => (this.#timer = nextTurn(expire)));
  }

  #finish(): void {
    if (this.isSettled || this.#finishing !== undefined) return;
    this.#timer?.cancel();
    this.#finishing = this.#copyResults();
  }

  async #copyResults(): Promise<void> {
    try {
      await this.#transfer?.download();
    } catch (thrown) {
      return this.#listener.onBroken(this, thrown);
    }
    this.#isReady = true;
    this.#listener.onReady(this);
  }

  #end(): void {
    this.#timer?.cancel();
    this.#explanationTimer?.cancel();
    this.#transfer?.release();
    this.#transfer = undefined;
    this.#listener.onEnded(this);
  }
}
