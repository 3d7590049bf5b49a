/** A call in flight on this rank: its Work, its deadline, and how it is named in messages. */
import { systemClock } from '../../core/clock';
import type { GroupRanks } from '../../core/group-ranks';
import { Work, type WorkHandle } from '../../core/work';
import type { CallOp } from '../call';
import type { CallSite } from '../../core/call-site';
import type { WatchedCall } from './deadline-watch';

/** After this long a call tells the peers that it waits for, which so find out when they wait in another call. */
const PROBE_MS = 20;

/** What a call is of: a method of a backend, or an exchange of bytes at the start of one. */
export type GrpcCallOp = CallOp | 'exchange';

export interface CallInfo {
  readonly op: GrpcCallOp;
  /** Of a collective. */
  readonly sequence: number | undefined;
  /** Identity of the group. */
  readonly group: string;
  readonly members: GroupRanks;
  readonly rank: number;
  readonly timeoutMs: number;
  /** Undefined where source lines are not wanted. */
  readonly callSite: CallSite | undefined;
}

/** Told when a call has ended in whatever way. */
export type OnEnded = (call: GrpcCall) => void;

export abstract class GrpcCall implements WatchedCall {
  readonly info: CallInfo;
  readonly work: Work;
  readonly dueMs: number;
  probeMs: number;
  readonly #handle: WorkHandle;
  readonly #onEnded: OnEnded;

  constructor(info: CallInfo, onEnded: OnEnded) {
    this.info = info;
    this.#onEnded = onEnded;
    const { op, sequence, group, rank } = info;
    this.#handle = Work.create({ op, sequence, group, rank });
    this.work = this.#handle.work;
    const nowMs = systemClock.now();
    this.dueMs = nowMs + info.timeoutMs;
    this.probeMs = nowMs + PROBE_MS;
  }

  /** The call with its arguments, as `allReduce(float32[4], Sum)`. */
  abstract describe(): string;
  /** Ranks of the group that it still has to hear from. */
  abstract awaitedPeers(): readonly number[];
  abstract probe(): void;
  abstract expire(): void;
  /** Nothing is sent or written for it any more. */
  protected abstract stop(): void;

  get isSettled(): boolean {
    return this.work.isCompleted;
  }

  /** The call, its place in the group, and its source line if that is known. */
  get title(): string {
    const { sequence, group, callSite } = this.info;
    const place = sequence === undefined ? '' : `collective ${sequence} of `;
    const line = callSite?.sourceLine;
    return `${this.describe()}, ${place}group ${group}${line === undefined ? '' : `, at ${line}`}`;
  }

  complete(): void {
    if (this.isSettled) return;
    this.stop();
    this.#onEnded(this);
    this.#handle.complete();
  }

  fail(error: Error): void {
    if (this.isSettled) return;
    this.stop();
    this.#onEnded(this);
    this.#handle.fail(error);
  }
}
