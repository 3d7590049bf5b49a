import { inspect } from 'node:util';
import { systemClock, type Clock } from './clock';
import { checkTimeout } from './deadline';
import { CollectiveTimeoutError, InvalidArgumentError } from './errors';

/** What a Work says about itself. */
export interface WorkInfo {
  /** 'allReduce', 'send', ... */
  readonly op: string;
  /** Sequence number in its group; undefined for point-to-point calls. */
  readonly sequence?: number | undefined;
  /** The group's identity. */
  readonly group?: string | undefined;
  /** Rank of the caller in its group. */
  readonly rank?: number | undefined;
}

/** Told what happens to a Work; backends use it to know which ranks wait. */
export interface WorkObserver {
  /** The first time that somebody waits for it (then, await, wait), settled or not. */
  onAwait(work: Work): void;
}

type Settlement =
  { readonly state: 'pending' } | { readonly state: 'done' } | { readonly state: 'failed'; readonly error: Error };

const PENDING: Settlement = { state: 'pending' };
const DONE: Settlement = { state: 'done' };

/**
 * A collective or point-to-point call in flight. Await it, or keep it and await it later.
 *
 * Until it settles, leave the buffers that the call was given alone. A Work that nobody awaits is not lost: its
 * failure ends the group, and every later call on the group says so.
 *
 * [Note: lazy promise] The promise behind it is made at the first `then`: one made eagerly and rejected before
 * anybody listens would end the process, and a hand-written `then` would run callbacks in another rank's context.
 */
export class Work implements Promise<void> {
  readonly [Symbol.toStringTag] = 'Work';
  readonly info: WorkInfo;
  #settlement: Settlement = PENDING;
  #observer: WorkObserver | undefined;
  #clock: Clock;
  #promise: Promise<void> | undefined;
  #resolve: (() => void) | undefined;
  #reject: ((error: Error) => void) | undefined;
  #onSettled: ((error: Error | undefined) => void) | undefined;

  private constructor(info: WorkInfo, observer: WorkObserver | undefined, clock: Clock) {
    this.info = info;
    this.#observer = observer;
    this.#clock = clock;
  }

  /** A Work and the handle that settles it. For backends; users receive Works from collectives. */
  static create(info: WorkInfo, observer?: WorkObserver, clock: Clock = systemClock): WorkHandle {
    const work = new Work(info, observer, clock);
    return {
      work,
      complete: () => work.#settle(DONE),
      fail: (error) => work.#settle({ state: 'failed', error }),
    };
  }

  /** A Work that has failed already; arguments that are refused before anything is sent give one. */
  static failed(info: WorkInfo, error: Error): Work {
    const handle = Work.create(info);
    handle.fail(error);
    return handle.work;
  }

  /** True once it has succeeded or failed. */
  get isCompleted(): boolean {
    return this.#settlement.state !== 'pending';
  }

  /** True once somebody has waited for it. */
  get isAwaited(): boolean {
    return this.#promise !== undefined;
  }

  /** What it failed with, if it has. */
  get error(): Error | undefined {
    return this.#settlement.state === 'failed' ? this.#settlement.error : undefined;
  }

  /**
   * Tell `listener` when it settles (at once if it has): undefined, or what it failed with. One listener; it does not
   * count as waiting, and runs before anybody who waits. For the process group: the listener runs inside the call of
   * the rank that settles this, so it must not throw, take long or start anything.
   */
  onSettled(listener: (error: Error | undefined) => void): void {
    if (this.isCompleted) listener(this.error);
    else this.#onSettled = listener;
  }

  /**
   * Wait, at most `timeoutMs`. Without a timeout the deadline of the call itself holds.
   * @throws CollectiveTimeoutError if this wait's own time is over; the call goes on and may be awaited again
   */
  wait(options: { readonly timeoutMs?: number | undefined } = {}): Promise<void> {
    if (typeof options !== 'object' || options === null) {
      return Promise.reject(new InvalidArgumentError(`wait: expected { timeoutMs }, got ${String(options)}.`));
    }
    if (options.timeoutMs === undefined) return this.then();
    return this.#waitAtMost(options.timeoutMs);
  }

  async #waitAtMost(timeoutMs: number): Promise<void> {
    checkTimeout(timeoutMs, timeoutMs);
    let giveUp: (error: Error) => void = () => undefined;
    const expiry = new Promise<never>((_resolve, reject) => (giveUp = reject));
    const timer = this.#clock.schedule(() => giveUp(this.#waitExpired(timeoutMs)), timeoutMs, true);
    try {
      await Promise.race([this.then(), expiry]);
    } finally {
      timer.cancel();
    }
  }

  #waitExpired(timeoutMs: number): Error {
    const { op, sequence, group, rank } = this.info;
    const place = [
      group === undefined ? '' : ` of group ${group}`,
      rank === undefined ? '' : ` on rank ${rank}`,
      sequence === undefined ? '' : `, sequence ${sequence}`,
    ].join('');
    return new CollectiveTimeoutError(
      `${op}${place} had not finished after the ${timeoutMs} ms that wait() was given. It is still in flight: leave its buffers alone and await it again.`,
      { op, sequence, group, rank },
    );
  }

  then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.#asPromise().then(onFulfilled, onRejected);
  }

  catch<B = never>(onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<void | B> {
    return this.#asPromise().catch(onRejected);
  }

  finally(onFinally?: (() => void) | null): Promise<void> {
    return this.#asPromise().finally(onFinally);
  }

  #asPromise(): Promise<void> {
    if (this.#promise !== undefined) return this.#promise;
    const settlement = this.#settlement;
    this.#promise = new Promise<void>((resolve, reject) => {
      if (settlement.state === 'done') resolve();
      else if (settlement.state === 'failed') reject(settlement.error);
      else {
        this.#resolve = resolve;
        this.#reject = reject;
      }
    });
    this.#observer?.onAwait(this);
    this.#observer = undefined;
    return this.#promise;
  }

  #settle(settlement: Settlement): void {
    if (this.#settlement.state !== 'pending') return;
    this.#settlement = settlement;
    this.#onSettled?.(this.error);
    this.#onSettled = undefined;
    if (settlement.state === 'failed') this.#reject?.(settlement.error);
    else this.#resolve?.();
    this.#resolve = undefined;
    this.#reject = undefined;
  }

  [inspect.custom](): string {
    const settlement = this.#settlement;
    const state = settlement.state === 'failed' ? `failed: ${settlement.error.message}` : settlement.state;
    const { op, sequence, group } = this.info;
    const place = `${group === undefined ? '' : ` group ${group}`}${sequence === undefined ? '' : ` #${sequence}`}`;
    return `Work <${op}${place}, ${state}>`;
  }
}

/** Settles a Work; only its first settlement counts. */
export interface WorkHandle {
  readonly work: Work;
  complete(): void;
  fail(error: Error): void;
}
