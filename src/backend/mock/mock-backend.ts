import { inspect } from 'node:util';
import type { Clock } from '../../core/clock';
import { DEFAULT_TIMEOUT_MS } from '../../core/deadline';
import { DTYPES, type DataBuffer } from '../../core/dtype';
import { ClosedError, InvalidArgumentError, UnsupportedError, asError } from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import { ReduceOp } from '../../core/reduce-op';
import { Work } from '../../core/work';
import type { AllToAllOptions, Backend, BackendCapabilities, CallOptions, CountsOptions, P2pOp } from '../backend';
import type { BackendStore } from '../backend-store';
import type { CallOp } from '../call';
import { describeArgument, type Caller } from '../check-arguments';
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
import { memoryUseOf as memoryUseOfCollective, type CollectiveInFlight } from './collective';
import { refuseMemoryInUse, type MemoryUse } from './memory-in-use';
import type { CallOrigin } from './mock-call';
import type { MockGroup } from './mock-group';
import { parseMockOptions, type MockOptions } from './mock-options';
import type { MockRank } from './mock-rank';
import { MockStoreEnd } from './mock-store';
import { MockWorld } from './mock-world';
import { memoryUseOf as memoryUseOfPointToPoint } from './point-to-point';
import { runAsRank } from './run-as-rank';
import { CallSite } from '../../core/call-site';
import { describeStanding } from './standing';

const CAPABILITIES: BackendCapabilities = {
  devices: ['cpu'],
  dtypes: DTYPES,
  reduceOps: Object.values(ReduceOp),
  progress: 'event-loop',
  bitwise: true,
};

/**
 * [Note: bare ranks] Outside `run` nothing is known about a rank between its calls, so one that will never call cannot
 * be told from one that is busy. Such a test would hang until its runner gives up, with a timer that keeps the process
 * alive; so a bare rank waits 4 seconds, as `runWorld` does for a world that stands still, and then learns who is missing.
 */
const BARE_TIMEOUT_MS = 4000;

/**
 * A group whose ranks all live in this process and on this event loop, for tests: every collective with exact results,
 * and every mistake found at once. The oracle that other backends are held to.
 */
export class MockBackend implements Backend {
  readonly name = 'mock';
  readonly rank: number;
  readonly worldSize: number;
  readonly capabilities = CAPABILITIES;
  /** The world's, on its root group. */
  readonly store: BackendStore | undefined;
  readonly #group: MockGroup;
  readonly #member: MockRank;
  readonly #caller: Caller;
  readonly #ledger: Ledger;
  readonly #children = new Set<MockBackend>();

  private constructor(group: MockGroup, rank: number) {
    this.#group = group;
    this.rank = rank;
    this.worldSize = group.size;
    this.#member = group.memberAt(rank);
    this.#ledger = new Ledger(rank, group.size);
    const member = this.#member;
    const givenMs = group.world.options.timeoutMs;
    this.#caller = {
      rank,
      size: group.size,
      get timeoutMs() {
        return givenMs ?? (member.state.kind === 'bare' ? BARE_TIMEOUT_MS : DEFAULT_TIMEOUT_MS);
      },
      deterministic: group.world.options.deterministic,
      capabilities: CAPABILITIES,
    };
    const { root, store } = group.world;
    const timeoutMs = (): number => this.#caller.timeoutMs;
    this.store = group === root ? new MockStoreEnd(store, member, timeoutMs) : undefined;
  }

  /**
   * The ends of a new world, by rank. Close each, or let `runWorld` do it.
   * @throws InvalidArgumentError if `size` is not a whole number from 1, or an option does not parse
   */
  static createWorld(size: number, options?: MockOptions): MockBackend[] {
    if (!Number.isInteger(size) || size < 1) {
      throw new InvalidArgumentError(
        `MockBackend.createWorld: expected a whole number of ranks from 1, got ${describeArgument(size)}.`,
      );
    }
    const { root } = new MockWorld(size, parseMockOptions(size, options, 'MockBackend.createWorld'));
    return Array.from({ length: size }, (_unused, rank) => new MockBackend(root, rank));
  }

  /** A world of one rank. */
  static single(options?: MockOptions): MockBackend {
    const { root } = new MockWorld(1, parseMockOptions(1, options, 'MockBackend.single'));
    return new MockBackend(root, 0);
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
  async split(ranks: readonly number[], options?: CallOptions): Promise<MockBackend | undefined> {
    const call = this.#startCollective('split', (caller) => checkSplit(caller, ranks, options));
    await call.work;
    const group = call.meeting.child;
    const rank = ranks.indexOf(this.rank);
    if (group === undefined || rank < 0) return undefined;
    const child = new MockBackend(group, rank);
    this.#children.add(child);
    if (this.#member.isRunning) this.#member.openGroups.add(child);
    return child;
  }

  abort(reason: Error): void {
    const { id, ranks } = this.#group;
    const cause = asError(reason);
    this.#group.fail(
      (rank, call) => {
        const { op, sequence } = call ?? {};
        const message = `group ${id} was aborted by ${ranks.name(this.rank)}: ${cause.message}`;
        return new ClosedError(message, { rank, group: id, op, sequence, ...ranks.blame([this.rank]), cause });
      },
      { cause },
    );
  }

  async close(): Promise<void> {
    this.#closeNow();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Grows with everything that any rank of the world does. */
  get activity(): number {
    return this.#group.world.numChanges;
  }

  /** @internal Faults of this world that no call has come to, described. */
  get unstruckFaults(): readonly string[] {
    return this.#group.world.unstruckFaults;
  }

  /** Where this rank stands, in words, for reports. */
  get standing(): string {
    return describeStanding(this.#member);
  }

  /** The world's time: the machine's, or virtual. */
  get clock(): Clock {
    return this.#group.world.clock;
  }

  /** Settles `delayMs` from now on the world's clock; on a virtual one as soon as nothing else can run. */
  sleep(delayMs: number): Promise<void> {
    return new Promise((resolve) => void this.clock.schedule(resolve, delayMs, true));
  }

  /**
   * Run `fn` as this rank: with its own memory account and default generator, and known to the world, so that
   * deadlocks, early returns and throws are found and told to the others at once.
   *
   * @returns what `fn` returns
   * @throws what `fn` throws; the others get PeerLostError with its message
   * @throws InvalidArgumentError with `checks: 'all'` if `fn` left a Work, a call or a group behind
   */
  async run<R>(fn: (backend: this) => R | Promise<R>): Promise<R> {
    return runAsRank(this.#group.world, this.#member, () => fn(this));
  }

  #closeNow(): void {
    for (const child of this.#children) child.#closeNow();
    this.#children.clear();
    if (this.store !== undefined) this.#group.world.store.close(this.#member);
    this.#group.close(this.rank);
    this.#member.openGroups.delete(this);
  }

  #collective(op: CallOp, check: (caller: Caller) => CheckedCollective): Work {
    try {
      return this.#startCollective(op, check).work;
    } catch (refusal) {
      return this.#refused(op, asError(refusal));
    }
  }

  #startCollective(op: CallOp, check: (caller: Caller) => CheckedCollective): CollectiveInFlight {
    const checked = this.#check(op, check, memoryUseOfCollective);
    this.#ledger.addCollective(checked.call);
    return this.#group.startCollective(this.#origin(op, checked.timeoutMs), checked);
  }

  #pointToPoint(op: 'send' | 'recv' | 'batch', check: (caller: Caller) => CheckedPointToPoint): Work {
    try {
      const checked = this.#check(op, check, memoryUseOfPointToPoint);
      this.#ledger.addPointToPoint(
        op,
        checked.parts.map((part) => part.call),
      );
      return this.#group.startPointToPoint(this.#origin(op, checked.timeoutMs), checked).work;
    } catch (refusal) {
      return this.#refused(op, asError(refusal));
    }
  }

  #refused(op: CallOp, error: Error): Work {
    const work = Work.failed(this.#info(op), error);
    if (this.#group.world.isChecking && this.#member.isRunning) {
      this.#member.unawaited.add({ work, title: `${op}, which was refused: ${withoutFullStop(error.message)}` });
    }
    return work;
  }

  /** @throws what the call is refused with, before it is counted or given a sequence number */
  #check<C>(op: CallOp, check: (caller: Caller) => C, memoryUseOf: (checked: C) => MemoryUse): C {
    const refusal = this.#group.refusal(this.rank, op);
    if (refusal !== undefined) throw refusal;
    try {
      const checked = check(this.#caller);
      const { world } = this.#group;
      if (world.isChecking) refuseMemoryInUse(world, this.#member.globalRank, memoryUseOf(checked));
      return checked;
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

  #origin(op: CallOp, timeoutMs: number): CallOrigin {
    const callSite = this.#group.world.options.sourceLines ? CallSite.capture() : undefined;
    return { group: this.#group, rank: this.rank, op, timeoutMs, callSite };
  }

  [inspect.custom](): string {
    const state = this.#group.isClosedBy(this.rank) ? 'closed' : 'open';
    return `MockBackend <rank ${this.rank} of ${this.worldSize}, group ${this.#group.id}, ${state}>`;
  }
}
