/** One outermost backward, with everything that runs nested in it. */
import { ContextKey } from '../core/context';
import { InvalidArgumentError } from '../core/errors';
import type { GradientGate, GradientLeaf } from './gradient-leaf';
import { describeTensor } from './describe';
import { notAwaited } from './pending-calls';

const sessionKey = new ContextKey<BackwardSession | undefined>(undefined);

interface LeafProgress {
  usesLeft: number;
  hasGradient: boolean;
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
  #isOver = false;

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
      if (progress === undefined) this.#leaves.set(leaf, { usesLeft: count, hasGradient: false });
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

  /** The leaf has got a gradient in this session. */
  noteGradient(leaf: GradientLeaf): void {
    (this.#leaves.get(leaf) as LeafProgress).hasGradient = true;
  }

  /** One use is over; after the last one the leaf's hooks run, if it has got a gradient. */
  finishUse(leaf: GradientLeaf): void {
    const progress = this.#leaves.get(leaf) as LeafProgress;
    if (--progress.usesLeft === 0 && progress.hasGradient) leaf.runHooks();
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

  /** Nothing is pending any more. */
  end(): void {
    this.#isOver = true;
    for (const leaf of this.#leaves.keys()) {
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
