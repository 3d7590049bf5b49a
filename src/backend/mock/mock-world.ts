/** What all ranks of a mock world share. */
import { rankSeed } from '../../core/random';
import { systemClock, type Clock } from '../../core/clock';
import { runDetached } from '../../core/context';
import { FaultPlan, InjectedFaultError } from './faults';
import { IdleWatch } from './idle';
import { LiveResources } from './liveness';
import type { MockCall } from './mock-call';
import { MockGroup } from './mock-group';
import type { Fault, ParsedMockOptions } from './mock-options';
import { MockRank } from './mock-rank';
import { MockStore } from './mock-store';
import { StreamOrder } from './portable';
import { FifoSchedule, RandomSchedule, type Schedule } from './schedule';
import { SnapshotPool } from './snapshot-pool';
import { VirtualClock } from './virtual-clock';

export class MockWorld {
  readonly options: ParsedMockOptions;
  readonly clock: Clock;
  readonly schedule: Schedule;
  readonly order: StreamOrder;
  readonly ranks: readonly MockRank[];
  /** Groups that at least one rank has not closed. */
  readonly groups = new Set<MockGroup>();
  readonly root: MockGroup;
  readonly store: MockStore;
  readonly liveResources: LiveResources;
  readonly snapshots = new SnapshotPool();
  /** Grows with everything that any rank does; a watchdog sees progress by it. */
  numChanges = 0;
  readonly #idle: IdleWatch;
  readonly #faults: FaultPlan;

  constructor(size: number, options: ParsedMockOptions) {
    this.options = options;
    this.clock = options.clock === 'virtual' ? new VirtualClock(() => this.noteChange()) : systemClock;
    this.schedule = options.schedule === 'random' ? new RandomSchedule(options.seed) : new FifoSchedule();
    this.order = new StreamOrder(options.portable);
    this.ranks = Array.from({ length: size }, (_unused, rank) => new MockRank(rank, rankSeed(options.seed, rank)));
    this.liveResources = new LiveResources(this.ranks);
    this.#faults = new FaultPlan(options.faults, options.seed);
    this.#idle = new IdleWatch(this);
    this.root = new MockGroup(this, 'world', this.ranks);
    this.store = new MockStore(this);
  }

  /** True if buffers are checked while in flight. */
  get isChecking(): boolean {
    return this.options.checks === 'all';
  }

  /** True if a timer, I/O or a sleep may wake this rank, or a fault holds it up. */
  canBeWoken(rank: MockRank): boolean {
    return rank.numSleeps > 0 || rank.heldArrivals !== undefined || this.hasLiveResources(rank);
  }

  /** True if something outside the world may wake this rank. */
  hasLiveResources(rank: MockRank): boolean {
    return this.liveResources.isLive(rank);
  }

  /** Faults that no call has come to. */
  get unstruckFaults(): readonly string[] {
    return this.#faults.unstruck;
  }

  /** Put a new call in flight; `arrive` brings it to where the others meet it. */
  start(call: MockCall, arrive: () => void): void {
    const { owner } = call;
    const fault = this.#faults.take(call);
    owner.calls.add(call);
    owner.latestCall = call;
    owner.numCalls += 1;
    if (this.isChecking && owner.isRunning) owner.unawaited.add(call);
    this.noteChange();
    if (fault === undefined) this.#arrive(call, arrive);
    else this.#strike(fault, call, arrive);
  }

  /** Something happened that may let a rank go on, or leave it stuck. */
  noteChange(): void {
    this.numChanges += 1;
    this.#idle.noteChange();
  }

  /** Call `verdict` when all ranks that can go on at once have done so. */
  decideLater(verdict: () => void): void {
    this.#idle.decideLater(verdict);
  }

  noteSettled(call: MockCall): void {
    this.noteChange();
    this.order.advance(call);
  }

  /** A rank will make no more calls. */
  loseRank(rank: MockRank, reason: string, error: Error): void {
    if (rank.state.kind === 'lost') return;
    rank.state = { kind: 'lost', error };
    for (const group of this.groups) {
      if (group.members.includes(rank)) group.failByLostRank(rank, reason, error);
    }
    if (rank.globalRank === 0) this.store.loseHost(`was lost: ${reason}`, error);
    this.noteChange();
  }

  #arrive(call: MockCall, arrive: () => void): void {
    if (call.owner.heldArrivals !== undefined) {
      call.isHeld = true;
      call.owner.heldArrivals.push(() => this.#arrive(call, arrive));
      return;
    }
    call.isHeld = false;
    if (call.isSettled) return; // its group ended while it was held up
    const closedRank = call.group.closedRankNeededBy(call);
    if (closedRank !== undefined) this.decideLater(() => call.group.failByClosedRank(closedRank));
    else arrive();
  }

  #strike(fault: Fault, call: MockCall, arrive: () => void): void {
    const { owner } = call;
    switch (fault.kind) {
      case 'crash': {
        const message = `injected crash of rank ${owner.globalRank} in ${call.title}`;
        const error = new InjectedFaultError(message);
        call.fail(error);
        return this.loseRank(owner, message, error);
      }
      case 'hang':
        owner.heldArrivals ??= [];
        return this.#arrive(call, arrive);
      case 'delay':
        owner.heldArrivals ??= [];
        this.#arrive(call, arrive);
        runDetached(() => this.clock.schedule(() => this.#release(owner), fault.delayMs ?? 0, true));
        return;
      case 'corrupt':
        call.corrupt((buffer) => this.#faults.corrupt(buffer, call));
        return this.#arrive(call, arrive);
    }
  }

  /** A delay is over: its calls arrive, in the order in which they were made. */
  #release(rank: MockRank): void {
    const arrivals = rank.heldArrivals ?? [];
    rank.heldArrivals = undefined;
    for (const arrive of arrivals) arrive();
    this.noteChange();
  }
}
