/**
 * The engine: carries gradients from a tensor to the leaves it was made of.
 *
 * [Note: order of backward] Nodes run in descending order of creation, which is an order in which every use of a result
 * comes before the result itself, the same on every run. The gradients that meet in a leaf during one outermost backward,
 * nested ones included, are summed in that order first, and then added to `.grad`: a checkpointed part of the graph, which
 * a nested backward goes through, gives the same bits. Autocast is off: backward runs in the dtypes of the forward.
 */
import { fromHere } from '../core/call-site';
import { noteCallInFlight } from '../core/calls-in-flight';
import { InvalidArgumentError } from '../core/errors';
import { withAutocast } from './autocast-mode';
import { BackwardSession } from './backward-session';
import { GradientLeaf } from './gradient-leaf';
import { noGrad } from './gradient-mode';
import type { Edge, GraphNode, Source } from './graph';
import { sumGradients } from './operators/accumulate';
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
  const isOver = noteCallInFlight('backward()');
  const run = (): Promise<void> =>
    session.run(() =>
      noGrad(() =>
        withAutocast(undefined, async () => {
          await session.enter(plan.uses.keys());
          await traversal.run(root, seed);
          if (outer === undefined) await session.runCallbacks();
        }),
      ),
    );
  try {
    await (outer === undefined && isSynchronised(plan) ? fromHere(run) : run());
  } finally {
    isOver();
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

/** Whether a strategy will communicate in this backward, so that the line of the call is worth knowing. */
function isSynchronised({ uses }: Plan): boolean {
  for (const leaf of uses.keys()) if (leaf.gradientGate !== undefined) return true;
  return false;
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

class Traversal {
  readonly #session: BackwardSession;
  readonly #nodes: readonly GraphNode[];

  constructor(session: BackwardSession, plan: Plan) {
    this.#session = session;
    this.#nodes = plan.nodes;
  }

  async run(root: Edge | GradientLeaf, seed: Value): Promise<void> {
    this.#deliver(root, seed);
    if (root instanceof GradientLeaf) this.#session.finishUse(root);
    for (const node of this.#nodes) {
      const hasGradient = node.gradients.some((gradient) => gradient !== undefined);
      const ran = hasGradient ? node.run(node.gradients) : [];
      const gradients = isPromise(ran) ? await ran : ran;
      const { inputs } = node;
      node.free();
      inputs.forEach((source, index) => this.#deliver(source, gradients[index]));
      for (const source of inputs) if (source instanceof GradientLeaf) this.#session.finishUse(source);
      for (const leaf of node.hiddenLeaves) this.#session.finishUse(leaf);
      const hold = this.#session.takeHold();
      if (hold !== undefined) await hold;
    }
  }

  /** Let go of all that is left: nothing after a success, everything that was not reached after a failure. */
  free(): void {
    for (const node of this.#nodes) node.free();
  }

  /** Pass a gradient, with a hold on its memory, to where it goes. */
  #deliver(source: Source, gradient: Value | undefined): void {
    if (gradient === undefined) return;
    if (source === undefined) return gradient.storage.allocation.release();
    if (source instanceof GradientLeaf) this.#session.deliver(source, gradient);
    else source.node.gradients[source.output] = sumGradients(source.node.gradients[source.output], gradient);
  }
}

function isPromise<T>(value: T | Promise<T>): value is Promise<T> {
  return typeof (value as { then?: unknown }).then === 'function';
}
