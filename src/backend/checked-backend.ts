/** What all backends do alike with a call before it starts: check it, count it, and say where a refused one was made. */
import type { DataBuffer } from '../core/dtype';
import { InvalidArgumentError, UnsupportedError, asError } from '../core/errors';
import type { GroupRanks } from '../core/group-ranks';
import type { ReduceOp } from '../core/reduce-op';
import { Work, type WorkInfo } from '../core/work';
import type { AllToAllOptions, Backend, BackendCapabilities, CallOptions, CountsOptions, P2pOp } from './backend';
import type { CallOp, PointToPointOp } from './call';
import type { Caller } from './check-arguments';
import {
  checkAllGather,
  checkAllReduce,
  checkAllToAll,
  checkBarrier,
  checkBroadcast,
  checkGather,
  checkReduce,
  checkReduceScatter,
  checkScatter,
  checkSplit,
  type CheckedCollective,
} from './check-collective';
import { checkBatch, checkPointToPoint, type CheckedPointToPoint } from './check-point-to-point';
import { Ledger, type LedgerRecord } from './ledger';

/** One rank's place in the group that its backend connects. */
export interface BackendPlace {
  /** Identity of the group, the same on all its ranks. */
  readonly id: string;
  readonly ranks: GroupRanks;
  readonly caller: Caller;
}

/** A call that is on its way. */
export interface StartedCall {
  readonly work: Work;
}

/**
 * All calls of a backend, up to where a checked one starts; that is the subclass's. A call that is refused, because the
 * group is over or an argument is wrong, gives a Work that has failed: it is not counted, and takes no sequence number.
 */
export abstract class CheckedBackend implements Backend {
  abstract readonly name: string;
  readonly rank: number;
  readonly worldSize: number;
  readonly capabilities: BackendCapabilities;
  readonly #place: BackendPlace;
  readonly #ledger: Ledger;

  /** @internal */
  protected constructor(place: BackendPlace) {
    const { rank, size, capabilities } = place.caller;
    this.rank = rank;
    this.worldSize = size;
    this.capabilities = capabilities;
    this.#place = place;
    this.#ledger = new Ledger(rank, size);
  }

  /** Identity of the group, the same on all its ranks: 'world', 'world/0', ... */
  get groupId(): string {
    return this.#place.id;
  }

  /** This rank's calls and bytes in this group, by op: [Note: ledger]. A copy. */
  get ledger(): LedgerRecord {
    return this.#ledger.record();
  }

  /** Count anew. */
  resetLedger(): void {
    this.#ledger.reset();
  }

  allReduce(data: DataBuffer, op: ReduceOp, options?: CallOptions): Work {
    return this.#collective('allReduce', (caller) => checkAllReduce(caller, data, op, options));
  }

  broadcast(data: DataBuffer, src: number, options?: CallOptions): Work {
    return this.#collective('broadcast', (caller) => checkBroadcast(caller, data, src, options));
  }

  allGather(send: DataBuffer, recv: DataBuffer, options?: CountsOptions): Work {
    return this.#collective('allGather', (caller) => checkAllGather(caller, send, recv, options));
  }

  reduceScatter(send: DataBuffer, recv: DataBuffer, op: ReduceOp, options?: CountsOptions): Work {
    return this.#collective('reduceScatter', (caller) => checkReduceScatter(caller, send, recv, op, options));
  }

  reduce(send: DataBuffer, recv: DataBuffer | undefined, dst: number, op: ReduceOp, options?: CallOptions): Work {
    return this.#collective('reduce', (caller) => checkReduce(caller, send, recv, dst, op, options));
  }

  gather(send: DataBuffer, recv: DataBuffer | undefined, dst: number, options?: CallOptions): Work {
    return this.#collective('gather', (caller) => checkGather(caller, send, recv, dst, options));
  }

  scatter(send: DataBuffer | undefined, recv: DataBuffer, src: number, options?: CallOptions): Work {
    return this.#collective('scatter', (caller) => checkScatter(caller, send, recv, src, options));
  }

  allToAll(send: DataBuffer, recv: DataBuffer, options?: AllToAllOptions): Work {
    return this.#collective('allToAll', (caller) => checkAllToAll(caller, send, recv, options));
  }

  barrier(options?: CallOptions): Work {
    return this.#collective('barrier', (caller) => checkBarrier(caller, options));
  }

  send(data: DataBuffer, dst: number, tag?: number, options?: CallOptions): Work {
    return this.#pointToPoint('send', (caller) => checkPointToPoint(caller, 'send', data, dst, tag, options));
  }

  recv(data: DataBuffer, src: number, tag?: number, options?: CallOptions): Work {
    return this.#pointToPoint('recv', (caller) => checkPointToPoint(caller, 'recv', data, src, tag, options));
  }

  batch(ops: readonly P2pOp[], options?: CallOptions): Work {
    return this.#pointToPoint('batch', (caller) => checkBatch(caller, ops, options));
  }

  abstract split(ranks: readonly number[], options?: CallOptions): Promise<Backend | undefined>;
  abstract abort(reason: Error): void;
  abstract close(): Promise<void>;

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal What this rank's calls go by. */
  protected get caller(): Caller {
    return this.#place.caller;
  }

  /** @internal Why a new call cannot start, if it cannot. */
  protected abstract refusal(op: CallOp): Error | undefined;
  /** @internal Called from within the method of the program's call, for its call site. */
  protected abstract startCollective(checked: CheckedCollective): StartedCall;
  /** @internal The same for sends and receives. */
  protected abstract startPointToPoint(op: PointToPointOp, checked: CheckedPointToPoint): StartedCall;

  /** @internal Checks of this backend alone; an InvalidArgumentError or UnsupportedError is given its place. */
  protected admitCollective(_checked: CheckedCollective): void {}

  /** @internal The same for sends and receives. */
  protected admitPointToPoint(_checked: CheckedPointToPoint): void {}

  /** @internal Told of a Work that was refused with `error`. */
  protected onRefused(_work: Work, _error: Error): void {}

  /**
   * @internal A split that may start, counted; for the subclass, which makes the new group.
   * @throws what it is refused with
   */
  protected checkedSplit(ranks: readonly number[], options?: CallOptions): CheckedCollective {
    return this.#checkedCollective('split', (caller) => checkSplit(caller, ranks, options));
  }

  #collective(op: CallOp, check: (caller: Caller) => CheckedCollective): Work {
    try {
      return this.startCollective(this.#checkedCollective(op, check)).work;
    } catch (refusal) {
      return this.#refused(op, asError(refusal));
    }
  }

  #checkedCollective(op: CallOp, check: (caller: Caller) => CheckedCollective): CheckedCollective {
    const checked = this.#check(op, check, (each) => this.admitCollective(each));
    this.#ledger.addCollective(checked.call);
    return checked;
  }

  #pointToPoint(op: PointToPointOp, check: (caller: Caller) => CheckedPointToPoint): Work {
    try {
      const checked = this.#check(op, check, (each) => this.admitPointToPoint(each));
      this.#ledger.addPointToPoint(
        op,
        checked.parts.map((part) => part.call),
      );
      return this.startPointToPoint(op, checked).work;
    } catch (refusal) {
      return this.#refused(op, asError(refusal));
    }
  }

  /** @throws what the call is refused with, before it is counted or given a sequence number */
  #check<C>(op: CallOp, check: (caller: Caller) => C, admit: (checked: C) => void): C {
    const refusal = this.refusal(op);
    if (refusal !== undefined) throw refusal;
    try {
      const checked = check(this.#place.caller);
      admit(checked);
      return checked;
    } catch (thrown) {
      throw this.#placed(op, thrown);
    }
  }

  #refused(op: CallOp, error: Error): Work {
    const work = Work.failed(this.#info(op), error);
    this.onRefused(work, error);
    return work;
  }

  /** The same error, saying which call of which rank it was. */
  #placed(op: CallOp, thrown: unknown): unknown {
    if (!(thrown instanceof InvalidArgumentError || thrown instanceof UnsupportedError)) return thrown;
    const { id, ranks } = this.#place;
    const message = `${op} on ${ranks.name(this.rank)} of group ${id}: ${thrown.message}`;
    return thrown instanceof UnsupportedError
      ? new UnsupportedError(message, this.#info(op))
      : new InvalidArgumentError(message, this.#info(op));
  }

  #info(op: CallOp): WorkInfo {
    return { op, group: this.#place.id, rank: this.rank };
  }
}
