/** One rank of a mock world: what it is doing, in all its groups together. */
import type { CallInFlight } from '../../core/calls-in-flight';
import { ContextKey } from '../../core/context';
import { Generator } from '../../core/generator';
import { MemoryAccount } from '../../core/memory-account';
import { UnawaitedCalls } from './misuse';
import type { MockCall } from './mock-call';
import type { StoreWait } from './store-wait';

/** 'bare': never inside `run`, so nothing is known about what it does between its calls. */
export type RankState =
  | { readonly kind: 'bare' }
  | { readonly kind: 'running' }
  | { readonly kind: 'returned' }
  | { readonly kind: 'lost'; readonly error: Error };

const BARE: RankState = { kind: 'bare' };

export class MockRank {
  /** Rank in the world. */
  readonly globalRank: number;
  readonly memoryAccount = new MemoryAccount();
  readonly generator: Generator;
  /** Calls in flight, in the order in which they were made. */
  readonly calls = new Set<MockCall>();
  /** Its waits for keys of the store. */
  readonly storeWaits = new Set<StoreWait>();
  state: RankState = BARE;
  /** Its latest call, finished or not, for reports. */
  latestCall: MockCall | undefined;
  numCalls = 0;
  /** A backward() or step(), say, that has not ended. */
  readonly callsInFlight = new Set<CallInFlight>();
  /** Only kept where buffers and Works are checked. */
  readonly unawaited = new UnawaitedCalls();
  /** Groups that it split off and has not closed. */
  readonly openGroups = new Set<{ readonly groupId: string }>();
  /** Timers of the virtual clock that it set. */
  numSleeps = 0;
  /** Arrivals that wait because a fault holds the rank up; undefined: nothing holds it. */
  heldArrivals: (() => void)[] | undefined;

  constructor(globalRank: number, seed: number) {
    this.globalRank = globalRank;
    this.generator = new Generator(seed);
  }

  /** True if it will never make another call. */
  get isFinished(): boolean {
    return this.state.kind === 'returned' || this.state.kind === 'lost';
  }

  get isRunning(): boolean {
    return this.state.kind === 'running';
  }

  /** The oldest call in flight. */
  get firstCall(): MockCall | undefined {
    for (const call of this.calls) return call;
    return undefined;
  }
}

/** The rank whose function runs in this asynchronous context. */
export const mockRankKey = new ContextKey<MockRank | undefined>(undefined);
