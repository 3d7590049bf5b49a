import { inspect } from 'node:util';
import type { Clock } from '../../core/clock';
import { DEFAULT_TIMEOUT_MS } from '../../core/deadline';
import { DTYPES } from '../../core/dtype';
import { ClosedError, InvalidArgumentError, asError } from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import { ReduceOp } from '../../core/reduce-op';
import type { Work } from '../../core/work';
import type { BackendCapabilities, CallOptions } from '../backend';
import type { BackendStore } from '../backend-store';
import type { CallOp, PointToPointOp } from '../call';
import { describeArgument, type Caller } from '../check-arguments';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { CheckedBackend } from '../checked-backend';
import { memoryUseOf as memoryUseOfCollective, type CollectiveInFlight } from './collective';
import { refuseMemoryInUse, type MemoryUse } from './memory-in-use';
import type { CallOrigin } from './mock-call';
import type { MockGroup } from './mock-group';
import { parseMockOptions, type MockOptions } from './mock-options';
import type { MockRank } from './mock-rank';
import { MockStoreEnd } from './mock-store';
import { MockWorld } from './mock-world';
import { memoryUseOf as memoryUseOfPointToPoint, type PointToPointInFlight } from './point-to-point';
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
export class MockBackend extends CheckedBackend {
  override readonly name = 'mock';
  /** The world's, on its root group. */
  readonly store: BackendStore | undefined;
  readonly #group: MockGroup;
  readonly #member: MockRank;
  readonly #children = new Set<MockBackend>();

  private constructor(group: MockGroup, rank: number) {
    super({ id: group.id, ranks: group.ranks, caller: callerAt(group, rank) });
    this.#group = group;
    this.#member = group.memberAt(rank);
    const { root, store } = group.world;
    const timeoutMs = (): number => this.caller.timeoutMs;
    this.store = group === root ? new MockStoreEnd(store, this.#member, timeoutMs) : undefined;
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

  /** As in `Backend`. Close the child when it is no longer needed; closing this group closes it too. */
  override async split(ranks: readonly number[], options?: CallOptions): Promise<MockBackend | undefined> {
    const call = this.startCollective(this.checkedSplit(ranks, options));
    await call.work;
    const group = call.meeting.child;
    const rank = ranks.indexOf(this.rank);
    if (group === undefined || rank < 0) return undefined;
    const child = new MockBackend(group, rank);
    this.#children.add(child);
    if (this.#member.isRunning) this.#member.openGroups.add(child);
    return child;
  }

  override abort(reason: Error): void {
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

  override async close(): Promise<void> {
    this.#closeNow();
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

  /** @internal */
  protected override refusal(op: CallOp): Error | undefined {
    return this.#group.refusal(this.rank, op);
  }

  /** @internal */
  protected override admitCollective(checked: CheckedCollective): void {
    this.#refuseMemoryInUse(() => memoryUseOfCollective(checked));
  }

  /** @internal */
  protected override admitPointToPoint(checked: CheckedPointToPoint): void {
    this.#refuseMemoryInUse(() => memoryUseOfPointToPoint(checked));
  }

  /** @internal */
  protected override startCollective(checked: CheckedCollective): CollectiveInFlight {
    return this.#group.startCollective(this.#origin(checked.call.op, checked.timeoutMs), checked);
  }

  /** @internal */
  protected override startPointToPoint(op: PointToPointOp, checked: CheckedPointToPoint): PointToPointInFlight {
    return this.#group.startPointToPoint(this.#origin(op, checked.timeoutMs), checked);
  }

  /** @internal */
  protected override onRefused(work: Work, error: Error): void {
    if (!this.#group.world.isChecking || !this.#member.isRunning) return;
    const title = `${work.info.op}, which was refused: ${withoutFullStop(error.message)}`;
    this.#member.unawaited.add({ work, title });
  }

  #refuseMemoryInUse(use: () => MemoryUse): void {
    const { world } = this.#group;
    if (world.isChecking) refuseMemoryInUse(world, this.#member.globalRank, use());
  }

  #closeNow(): void {
    for (const child of this.#children) child.#closeNow();
    this.#children.clear();
    if (this.store !== undefined) this.#group.world.store.close(this.#member);
    this.#group.close(this.rank);
    this.#member.openGroups.delete(this);
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

function callerAt(group: MockGroup, rank: number): Caller {
  const { timeoutMs: givenMs, deterministic } = group.world.options;
  const member = group.memberAt(rank);
  return {
    rank,
    size: group.size,
    get timeoutMs() {
      return givenMs ?? (member.state.kind === 'bare' ? BARE_TIMEOUT_MS : DEFAULT_TIMEOUT_MS);
    },
    deterministic,
    capabilities: CAPABILITIES,
  };
}
