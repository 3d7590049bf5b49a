import { CollectiveTimeoutError } from '../../core/errors';
import { Work, type WorkHandle, type WorkObserver } from '../../core/work';
import { LATE_KEY_ADVICE } from '../backend-store';
import { CallSite } from '../../core/call-site';
import { quote } from '../store-table';
import type { MockRank } from './mock-rank';
import type { MockWorld } from './mock-world';

/** A rank that waits for keys of the store to be set. */
export class StoreWait implements WorkObserver {
  readonly op: 'store.get' | 'store.wait';
  readonly owner: MockRank;
  readonly keys: readonly string[];
  readonly timeoutMs: number;
  /** When the deadline is, on the world's clock. */
  readonly dueMs: number;
  readonly work: Work;
  isAwaited = false;
  /** The store has it, and looks for the keys. */
  isHeld = false;
  /** The keys are set; only the rank has not been told yet. */
  isComplete = false;
  /** Look for the keys no more. */
  giveUp: () => void = () => undefined;
  readonly #world: MockWorld;
  readonly #callSite: CallSite | undefined;
  readonly #handle: WorkHandle;

  constructor(world: MockWorld, owner: MockRank, op: StoreWait['op'], keys: readonly string[], timeoutMs: number) {
    this.#world = world;
    this.owner = owner;
    this.op = op;
    this.keys = keys;
    this.timeoutMs = timeoutMs;
    this.dueMs = world.clock.now() + timeoutMs;
    this.#callSite = world.options.sourceLines ? CallSite.capture() : undefined;
    this.#handle = Work.create({ op, rank: owner.globalRank }, this, world.clock);
    this.work = this.#handle.work;
    owner.storeWaits.add(this);
  }

  /** As `store.get("ready"), at train.ts:7:3`. */
  get title(): string {
    const line = this.#callSite?.sourceLine;
    const keys = this.keys.slice(0, 4).map(quote);
    const more = this.keys.length > keys.length ? [`${this.keys.length - keys.length} more`] : [];
    return `${this.op}(${[...keys, ...more].join(', ')})${line === undefined ? '' : `, at ${line}`}`;
  }

  /** True once it has succeeded or failed. */
  get isOver(): boolean {
    return this.work.isCompleted;
  }

  onAwait(): void {
    this.isAwaited = true;
    this.#world.noteChange();
  }

  complete(): void {
    if (this.#retire()) this.#handle.complete();
  }

  fail(error: Error): void {
    if (this.#retire()) this.#handle.fail(error);
  }

  /** Its time is over. @param missing the keys without a value */
  timeoutError(missing: string): Error {
    const message = `no value for ${missing} within ${this.timeoutMs} ms. ${LATE_KEY_ADVICE}`;
    return new CollectiveTimeoutError(message, { op: this.op, rank: this.owner.globalRank });
  }

  /** False if it was over already. */
  #retire(): boolean {
    if (!this.owner.storeWaits.delete(this)) return false;
    this.isComplete = true;
    this.giveUp();
    this.#world.noteChange();
    return true;
  }
}

/** The waits of a rank that somebody awaits. */
export function awaitedStoreWaits(rank: MockRank): StoreWait[] {
  return [...rank.storeWaits].filter((wait) => wait.isAwaited);
}
