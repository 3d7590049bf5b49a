/** A call in flight: its Work, who made it and where, until when it may take. */
import type { HostBuffer } from '../../core/dtype';
import { Work, type WorkHandle, type WorkObserver } from '../../core/work';
import type { CallOp } from '../call';
import type { MemoryUse } from './memory-in-use';
import type { MockGroup } from './mock-group';
import type { MockRank } from './mock-rank';
import type { CallSite } from '../../core/call-site';

/** Who calls what, where. */
export interface CallOrigin {
  readonly group: MockGroup;
  /** Rank in `group`. */
  readonly rank: number;
  readonly op: CallOp;
  readonly timeoutMs: number;
  readonly callSite: CallSite | undefined;
}

export abstract class MockCall implements WorkObserver {
  readonly group: MockGroup;
  readonly rank: number;
  readonly op: CallOp;
  /** Of a collective. */
  readonly sequence: number | undefined;
  readonly owner: MockRank;
  readonly timeoutMs: number;
  /** When the deadline is, on the world's clock. */
  readonly dueMs: number;
  readonly work: Work;
  isAwaited = false;
  /** It has all that it needs; only its caller has not been told yet. */
  isComplete = false;
  /** A fault keeps it from arriving. */
  isHeld = false;
  readonly #callSite: CallSite | undefined;
  readonly #handle: WorkHandle;

  constructor(origin: CallOrigin, sequence: number | undefined) {
    const { group, rank, op, timeoutMs, callSite } = origin;
    this.group = group;
    this.rank = rank;
    this.op = op;
    this.sequence = sequence;
    this.owner = group.memberAt(rank);
    this.timeoutMs = timeoutMs;
    this.dueMs = group.world.clock.now() + timeoutMs;
    this.#callSite = callSite;
    this.#handle = Work.create({ op, sequence, group: group.id, rank }, this, group.world.clock);
    this.work = this.#handle.work;
  }

  /** The call with its arguments, as `allReduce(float32[4], Sum)`. */
  abstract describe(): string;

  /** Ranks of the group that this call still waits for. */
  abstract missingRanks(): readonly number[];

  /** The calls that complete together with this one, itself included. */
  abstract companions(): readonly MockCall[];

  /** Make a fault flip a bit in what it contributes; the caller's buffer stays as it is. */
  abstract corrupt(flip: (buffer: HostBuffer) => HostBuffer): void;

  /** What it reads and writes while it is in flight. */
  abstract readonly memoryUse: MemoryUse;

  /** Go on if everything that it waits for is there. */
  abstract progress(): void;

  /** Put back what the caller had in its buffers. */
  protected abstract restoreBuffers(): void;

  get sourceLine(): string | undefined {
    return this.#callSite?.sourceLine;
  }

  get isSettled(): boolean {
    return this.work.isCompleted;
  }

  /** The call, its place in the group, and its source line. */
  get title(): string {
    const place = this.sequence === undefined ? '' : `collective ${this.sequence} of `;
    const line = this.sourceLine;
    return `${this.describe()}, ${place}group ${this.group.id}${line === undefined ? '' : `, at ${line}`}`;
  }

  /** Calls that have to complete before this one: [Note: portable mode]; none otherwise. */
  callsAhead(): readonly MockCall[] {
    return this.group.world.order.callsAhead(this.companions());
  }

  onAwait(): void {
    this.owner.unawaited.forget(this);
    if (this.isSettled) return;
    this.isAwaited = true;
    this.group.world.noteChange();
  }

  /** Tell the caller that it is done. */
  complete(): void {
    if (this.isSettled) return;
    this.#retire();
    this.#handle.complete();
    this.group.world.noteSettled(this);
  }

  fail(error: Error): void {
    if (this.isSettled) return;
    this.restoreBuffers();
    this.failAsIs(error);
  }

  /** Fail, and leave the caller's buffers as they are. */
  failAsIs(error: Error): void {
    if (this.isSettled) return;
    this.#retire();
    this.#handle.fail(error);
    this.group.world.noteSettled(this);
  }

  #retire(): void {
    this.isComplete = true;
    this.owner.calls.delete(this);
  }
}
