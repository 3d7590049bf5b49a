import { inspect } from 'node:util';
import { DEFAULT_TIMEOUT_MS, checkTimeout } from '../../core/deadline';
import { DTYPES, type DataBuffer } from '../../core/dtype';
import { InvalidArgumentError, UnsupportedError, asError } from '../../core/errors';
import { stderrLogger, type Logger } from '../../core/logger';
import { ReduceOp } from '../../core/reduce-op';
import { Work } from '../../core/work';
import type { AllToAllOptions, Backend, BackendCapabilities, CallOptions, CountsOptions, P2pOp } from '../backend';
import type { CallOp } from '../call';
import { CallSite } from '../../core/call-site';
import type { Caller } from '../check-arguments';
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
} from '../check-collective';
import { checkBatch, checkPointToPoint, type CheckedPointToPoint } from '../check-point-to-point';
import { Ledger, type LedgerRecord } from '../ledger';
import { GrpcGroup } from './grpc-group';
import { GrpcWorld } from './grpc-world';
import { beforeFatalError } from './last-words';
import type { Mesh } from './link';
import type { StoreClient } from './store-client';

const CAPABILITIES: BackendCapabilities = {
  devices: ['cpu'],
  dtypes: DTYPES,
  reduceOps: Object.values(ReduceOp),
  progress: 'event-loop',
  bitwise: true,
};

/** A frame has 32 bits for the tag. */
const MAX_TAG = 2 ** 32 - 1;

export interface GrpcBackendOptions {
  /** False: an all-reduce may leave rank order where that is faster; subgroups too. Default true. */
  readonly deterministic?: boolean | undefined;
  /** Milliseconds that a call may wait where it does not say otherwise; default 10 minutes. */
  readonly timeoutMs?: number | undefined;
  /** Told why a group failed, at level 'info'. */
  readonly logger?: Logger | undefined;
  /** Name the caller's source line in errors; default false, as it costs several microseconds a call. */
  readonly callSites?: boolean | undefined;
  /** The world's store; the session behind it is the mesh's to close. */
  readonly store?: StoreClient | undefined;
}

/** What the calls of a group and its subgroups go by. */
type CallDefaults = Pick<Caller, 'timeoutMs' | 'deterministic'>;

/**
 * A group whose ranks are processes, connected by a mesh of links. Reductions go in rank order, so results have the
 * mock's bits; all but those of an all-reduce with `deterministic: false`.
 *
 * A call that has failed may leave part of a frame still arriving in its receive buffer: its contents are undefined,
 * and the memory is the caller's own again when the backend is closed.
 */
export class GrpcBackend implements Backend {
  readonly name = 'grpc';
  readonly rank: number;
  readonly worldSize: number;
  readonly capabilities: BackendCapabilities;
  /** The world's, on its root group. */
  readonly store: StoreClient | undefined;
  readonly #world: GrpcWorld;
  readonly #group: GrpcGroup;
  readonly #caller: Caller;
  readonly #ledger: Ledger;
  readonly #isRoot: boolean;
  readonly #children = new Set<GrpcBackend>();
  readonly #forgetLastWords: () => void;

  private constructor(
    world: GrpcWorld,
    group: GrpcGroup,
    { timeoutMs, deterministic }: CallDefaults,
    isRoot: boolean,
    store?: StoreClient,
  ) {
    this.store = store;
    this.#world = world;
    this.#group = group;
    this.#isRoot = isRoot;
    this.rank = group.rank;
    this.worldSize = group.size;
    this.#ledger = new Ledger(group.rank, group.size);
    this.capabilities = deterministic === false ? { ...CAPABILITIES, bitwise: false } : CAPABILITIES;
    this.#caller = { rank: group.rank, size: group.size, timeoutMs, deterministic, capabilities: this.capabilities };
    this.#forgetLastWords = isRoot ? beforeFatalError((error) => this.announceLoss(error)) : () => undefined;
  }

  /**
   * The world that the mesh connects. Closing the backend closes the mesh.
   * @throws InvalidArgumentError for a timeout that is not a positive number
   */
  static over(mesh: Mesh, options: GrpcBackendOptions = {}): GrpcBackend {
    const timeoutMs = checkTimeout(options.timeoutMs, DEFAULT_TIMEOUT_MS);
    const world = new GrpcWorld(mesh, options.logger ?? stderrLogger, options.callSites);
    const everybody = Array.from({ length: mesh.worldSize }, (_unused, rank) => rank);
    const group = new GrpcGroup(world, 'world', everybody);
    group.onFailed = (cause, errorFor) => options.store?.endWaits(cause, errorFor);
    world.register(group);
    world.listen();
    const defaults = { timeoutMs, deterministic: options.deterministic };
    return new GrpcBackend(world, group, defaults, true, options.store);
  }

  /** Identity of the group, the same on all its ranks: 'world', 'world/0', ... */
  get groupId(): string {
    return this.#group.id;
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

  /** As in `Backend`. Close the child when it is no longer needed; closing this group closes it too. */
  async split(ranks: readonly number[], options?: CallOptions): Promise<GrpcBackend | undefined> {
    const checked = this.#check('split', (caller) => checkSplit(caller, ranks, options));
    const members = (checked.call.ranks ?? []).map((rank) => this.#group.members[rank] as number);
    const id = this.#group.nextChildId();
    await this.#start(checked);
    if (!members.includes(this.#world.rank)) return undefined;
    const group = new GrpcGroup(this.#world, id, members);
    const child = new GrpcBackend(this.#world, group, this.#caller, false);
    this.#world.register(group);
    this.#children.add(child);
    if (this.#group.isClosed) child.#closeGroups(); // closed while the split was on its way
    return child;
  }

  abort(reason: Error): void {
    this.#group.abort(asError(reason));
  }

  async close(): Promise<void> {
    const answered = this.store?.close();
    this.#closeGroups();
    if (!this.#isRoot) return;
    this.#forgetLastWords();
    await answered;
    await this.#world.close();
  }

  /**
   * This process is about to end because of `error`: tell all peers, whose groups with this rank end with PeerLostError
   * that carries its message. Waits for nothing; what a link cannot take at once is not said. See last-words.ts.
   */
  announceLoss(error: Error): void {
    this.#world.announceLoss(this.#group, error);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #closeGroups(): void {
    for (const child of this.#children) child.#closeGroups();
    this.#children.clear();
    this.#group.close();
  }

  #collective(op: CallOp, check: (caller: Caller) => CheckedCollective): Work {
    try {
      return this.#start(this.#check(op, check));
    } catch (refusal) {
      return Work.failed(this.#info(op), asError(refusal));
    }
  }

  #start(checked: CheckedCollective): Work {
    this.#ledger.addCollective(checked.call);
    return this.#group.startCollective(checked, this.#callSite()).work;
  }

  #pointToPoint(op: 'send' | 'recv' | 'batch', check: (caller: Caller) => CheckedPointToPoint): Work {
    try {
      const checked = this.#check(op, (caller) => checkTags(check(caller)));
      this.#ledger.addPointToPoint(
        op,
        checked.parts.map((part) => part.call),
      );
      return this.#group.startPointToPoint(op, checked, this.#callSite()).work;
    } catch (refusal) {
      return Work.failed(this.#info(op), asError(refusal));
    }
  }

  #callSite(): CallSite | undefined {
    return this.#world.hasCallSites ? CallSite.capture() : undefined;
  }

  /** @throws what the call is refused with, before it is counted or given a sequence number */
  #check<C>(op: CallOp, check: (caller: Caller) => C): C {
    const refusal = this.#group.refusal(op);
    if (refusal !== undefined) throw refusal;
    try {
      return check(this.#caller);
    } catch (thrown) {
      throw this.#placed(op, thrown);
    }
  }

  /** The same error, saying which call of which rank it was. */
  #placed(op: CallOp, thrown: unknown): unknown {
    if (!(thrown instanceof InvalidArgumentError || thrown instanceof UnsupportedError)) return thrown;
    const message = `${op} on ${this.#group.ranks.name(this.rank)} of group ${this.#group.id}: ${thrown.message}`;
    return thrown instanceof UnsupportedError
      ? new UnsupportedError(message, this.#info(op))
      : new InvalidArgumentError(message, this.#info(op));
  }

  #info(op: CallOp): { readonly op: string; readonly group: string; readonly rank: number } {
    return { op, group: this.#group.id, rank: this.rank };
  }

  [inspect.custom](): string {
    const state = this.#group.isClosed ? 'closed' : 'open';
    return `GrpcBackend <rank ${this.rank} of ${this.worldSize}, group ${this.#group.id}, ${state}>`;
  }
}

function checkTags(checked: CheckedPointToPoint): CheckedPointToPoint {
  const tag = checked.parts.find(({ call }) => call.tag > MAX_TAG)?.call.tag;
  if (tag === undefined) return checked;
  throw new UnsupportedError(`tag: this backend takes tags up to ${MAX_TAG}, got ${tag}.`);
}
