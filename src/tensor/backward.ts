/**
 * The engine: carries gradients from a tensor to the leaves it was made of.
 *
 * [Note: order of backward] Nodes run in descending order of creation, which is an order in which every use of a result
 * comes before the result itself, the same on every run. The gradients that meet in a leaf during one backward are summed
 * in that order first, and then added to `.grad`.
 */
import { InvalidArgumentError } from '../core/errors';
import { BackwardSession } from './backward-session';
import { GradientLeaf } from './gradient-leaf';
import { noGrad } from './gradient-mode';
import type { Edge, GraphNode, Source } from './graph';
import { add } from './operators/arithmetic';
import { addInto } from './operators/accumulate';
import type { Value } from './value';

/**
 * Run backward from `root` with the gradient `seed`.
 *
 * Everything that can be refused is refused, and the leaves are marked as pending, before this function returns, and
 * it never settles in the same turn: a call that nobody awaits is noticed by the next.
 */
export async function runBackward(root: Edge | GradientLeaf, seed: Value): Promise<void> {
  const plan = planBackward(root);
  const outer = BackwardSession.current();
  const session = outer ?? new BackwardSession();
  session.claim(plan.uses);
  const traversal = new Traversal(session, plan);
  seed.storage.allocation.hold();
  try {
    await session.run(() =>
      noGrad(async () => {
        await session.enter(plan.uses.keys());
        await traversal.run(root, seed);
        if (outer === undefined) await session.runCallbacks();
      }),
    );
  } finally {
    traversal.free();
    if (outer === undefined) session.end();
  }
}

interface Plan {
  /** In the order in which they run. */
  readonly nodes: readonly GraphNode[];
  /** How often each leaf is used, hidden uses included. */
  readonly uses: ReadonlyMap<GradientLeaf, number>;
}

function planBackward(root: Edge | GradientLeaf): Plan {
  const uses = new Map<GradientLeaf, number>();
  const seen = new Set<GraphNode>();
  const open: GraphNode[] = [];
  const visit = (source: Source): void => {
    if (source === undefined) return;
    if (source instanceof GradientLeaf) uses.set(source, (uses.get(source) ?? 0) + 1);
    else if (!seen.has(source.node)) {
      seen.add(source.node);
      open.push(source.node);
    }
  };
  visit(root);
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    if (node.isFreed) throw graphIsFreed(node);
    node.inputs.forEach(visit);
    node.hiddenLeaves.forEach(visit);
  }
  return { nodes: [...seen].sort((a, b) => b.sequence - a.sequence), uses };
}

function graphIsFreed(node: GraphNode): InvalidArgumentError {
  return new InvalidArgumentError(
    `backward: the graph was freed at '${node.name}' by an earlier backward() that went through it. Compute the loss again, or add the losses and call backward() once.`,
  );
}

/** What has come in for one leaf during one traversal. */
interface LeafSum {
  gradient: Value | undefined;
  usesLeft: number;
}

class Traversal {
  readonly #session: BackwardSession;
  readonly #nodes: readonly GraphNode[];
  readonly #leaves = new Map<GradientLeaf, LeafSum>();

  constructor(session: BackwardSession, plan: Plan) {
    this.#session = session;
    this.#nodes = plan.nodes;
    for (const [leaf, count] of plan.uses) this.#leaves.set(leaf, { gradient: undefined, usesLeft: count });
  }

  async run(root: Edge | GradientLeaf, seed: Value): Promise<void> {
    this.#deliver(root, seed);
    if (root instanceof GradientLeaf) this.#finishUse(root);
    for (const node of this.#nodes) {
      const hasGradient = node.gradients.some((gradient) => gradient !== undefined);
      const ran = hasGradient ? node.run(node.gradients) : [];
      const gradients = isPromise(ran) ? await ran : ran;
      const { inputs } = node;
      node.free();
      inputs.forEach((source, index) => this.#deliver(source, gradients[index]));
      for (const source of inputs) if (source instanceof GradientLeaf) this.#finishUse(source);
      for (const leaf of node.hiddenLeaves) this.#finishUse(leaf);
    }
  }

  /** Let go of all that is left: nothing after a success, everything that was not reached after a failure. */
  free(): void {
    for (const node of this.#nodes) node.free();
    for (const sum of this.#leaves.values()) sum.gradient?.storage.allocation.release();
    this.#leaves.clear();
  }

  /** Pass a gradient, with a hold on its memory, to where it goes. */
  #deliver(source: Source, gradient: Value | undefined): void {
    if (gradient === undefined) return;
    if (source === undefined) return gradient.storage.allocation.release();
    if (source instanceof GradientLeaf) {
      const sum = this.#leaves.get(source) as LeafSum;
      sum.gradient = accumulate(sum.gradient, gradient);
    } else {
      source.node.gradients[source.output] = accumulate(source.node.gradients[source.output], gradient);
    }
  }

  #finishUse(leaf: GradientLeaf): void {
    const sum = this.#leaves.get(leaf) as LeafSum;
    if (--sum.usesLeft === 0 && sum.gradient !== undefined) {
      leaf.accumulate(sum.gradient);
      sum.gradient = undefined;
      this.#session.noteGradient(leaf);
    }
    this.#session.finishUse(leaf);
  }
}

/** The sum of what was there and what comes in, in memory of its own unless it is the first; the holds pass to the sum. */
function accumulate(present: Value | undefined, incoming: Value): Value {
  if (present === undefined) return incoming;
  if (present.storage.allocation.holders === 1) {
    addInto(present.storage, incoming.storage);
    incoming.storage.allocation.release();
    return present;
  }
  const sum = add(present, incoming).output;
  sum.storage.allocation.hold();
  present.storage.allocation.release();
  incoming.storage.allocation.release();
  return sum;
}

function isPromise<T>(value: T | Promise<T>): value is Promise<T> {
  return typeof (value as { then?: unknown }).then === 'function';
}
