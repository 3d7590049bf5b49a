/** One outermost backward, with everything that runs nested in it. */
import { ContextKey } from '../core/context';
import { InvalidArgumentError } from '../core/errors';
import type { GradientGate, GradientLeaf } from './gradient-leaf';
import { describeTensor } from './describe';
import { sumGradients } from './operators/accumulate';
import { notAwaited } from './pending-calls';
import type { Value } from './value';

const sessionKey = new ContextKey<BackwardSession | undefined>(undefined);

interface LeafProgress {
  usesLeft: number;
  /** The sum of what has come in, with a hold on its memory. */
  gradient: Value | undefined;
}

type Callback = () => void | Promise<void>;

/**
 * [Note: last use of a leaf] A leaf is ready when nothing in the outermost backward can touch it any more. Each operator
 * input that is the leaf counts as a use; so does each node that lists it in `hiddenLeaves`, since the node will reach it
 * by a nested backward (activation checkpointing recomputes that way). A nested backward adds its uses to the same count
 * while the node that runs it still holds its own.
 */
export class BackwardSession {
  readonly #leaves = new Map<GradientLeaf, LeafProgress>();
  readonly #gates = new Set<GradientGate>();
  readonly #callbacks: Callback[] = [];
  readonly #cleanups: (() => void)[] = [];
  #hold: Promise<void> | undefined;
  #isOver = false;
  #isLossScaled = false;

  /** The session that this context runs in, if it has not ended. */
  static current(): BackwardSession | undefined {
    const session = sessionKey.get();
    return session === undefined || session.#isOver ? undefined : session;
  }

  /** Run `fn` with this session as the current one. */
  run<R>(fn: () => R): R {
    return sessionKey.run(this, fn);
  }

  /**
   * Count the uses of a backward that is about to run, and mark its leaves as pending.
   * @throws InvalidArgumentError, with nothing marked, if another backward or a step is pending on one of them, or if a
   *   leaf's hooks have run already
   */
  claim(uses: ReadonlyMap<GradientLeaf, number>): void {
    for (const leaf of uses.keys()) this.#check(leaf);
    for (const [leaf, count] of uses) {
      leaf.pendingBackward = this;
      const progress = this.#leaves.get(leaf);
      if (progress === undefined) this.#leaves.set(leaf, { usesLeft: count, gradient: undefined });
      else progress.usesLeft += count;
    }
  }

  #check(leaf: GradientLeaf): void {
    const isOurs = leaf.pendingBackward === this;
    if (!isOurs && leaf.pendingBackward !== undefined) throw notAwaited('backward', 'backward()', leaf.tensor);
    if (leaf.pendingCall !== undefined) throw notAwaited('backward', leaf.pendingCall, leaf.tensor);
    if (this.#leaves.get(leaf)?.usesLeft !== 0) return;
    throw new InvalidArgumentError(
      `backward: ${describeTensor(leaf.tensor)} is reached by a nested backward() after its gradient was reported ready. List it in the hiddenLeaves of the customFunction that runs the nested one.`,
    );
  }

  /** Tell the gates of `leaves` that a backward is about to reach them; each is prepared once in a session. */
  async enter(leaves: Iterable<GradientLeaf>): Promise<void> {
    const reached = [...leaves];
    for (const { gradientGate } of reached) {
      if (gradientGate === undefined || this.#gates.has(gradientGate)) continue;
      this.#gates.add(gradientGate);
      await gradientGate.prepare?.();
    }
    for (const gate of this.#gates) gate.inspect?.(reached.map((leaf) => leaf.tensor));
  }

  /** A gradient for the leaf has come in, with a hold on its memory. */
  deliver(leaf: GradientLeaf, gradient: Value): void {
    const progress = this.#leaves.get(leaf) as LeafProgress;
    progress.gradient = sumGradients(progress.gradient, gradient);
  }

  /** One use is over; after the last one the leaf, if a gradient has come in, takes the sum, and its hooks run. */
  finishUse(leaf: GradientLeaf): void {
    const progress = this.#leaves.get(leaf) as LeafProgress;
    if (--progress.usesLeft > 0 || progress.gradient === undefined) return;
    leaf.accumulate(progress.gradient);
    progress.gradient = undefined;
    leaf.runHooks();
  }

  /**
   * Whether a GradScaler has scaled the loss of this backward. Its node is the first to run and notes it here; a strategy
   * that scales by itself (ZeRO in float16) then leaves it out.
   */
  get isLossScaled(): boolean {
    return this.#isLossScaled;
  }

  noteLossScaled(): void {
    this.#isLossScaled = true;
  }

  /**
   * Let no further node run until `promise`, which does not reject, has settled. Called from a gradient hook by a strategy
   * that wants memory back first.
   */
  holdUp(promise: Promise<void>): void {
    const before = this.#hold;
    this.#hold = before === undefined ? promise : before.then(() => promise);
  }

  /** What the next node has to wait for. */
  takeHold(): Promise<void> | undefined {
    const hold = this.#hold;
    this.#hold = undefined;
    return hold;
  }

  addCallback(callback: Callback): void {
    this.#callbacks.push(callback);
  }

  /** Run the callbacks, also those that are added meanwhile, one after the other. */
  async runCallbacks(): Promise<void> {
    for (let callback = this.#callbacks.shift(); callback !== undefined; callback = this.#callbacks.shift()) {
      await callback();
    }
  }

  /** Run `cleanup`, which does not throw, at the end, after success and failure alike. */
  addCleanup(cleanup: () => void): void {
    this.#cleanups.push(cleanup);
  }

  /** Nothing is pending any more. */
  end(): void {
    this.#isOver = true;
    for (const cleanup of this.#cleanups) cleanup();
    for (const [leaf, { gradient }] of this.#leaves) {
      gradient?.storage.allocation.release(); // after a failure
      if (leaf.pendingBackward === this) leaf.pendingBackward = undefined;
    }
  }
}

/**
 * Run `callback` at the end of the outermost backward of this context, before its promise settles; a rejection rejects
 * that backward. Callbacks run one after the other, in the order they were added; none runs if backward failed.
 * @throws InvalidArgumentError outside of a backward
 */
export function afterBackward(callback: Callback): void {
  const session = BackwardSession.current();
  if (session === undefined) {
    throw new InvalidArgumentError(
      'afterBackward: no backward() is running here. Call it from a gradient hook or from the backward of a customFunction.',
    );
  }
  session.addCallback(callback);
}
