/** Training with DDP on equal parts of one batch, whatever the number of ranks: on one rank it is that of the whole batch. */
import { Gpt } from '../../examples/gpt/model';
import { Generator } from '../../src/core/generator';
import { bf16CompressHook } from '../../src/ddp/comm-hooks';
import { DistributedDataParallel, type DistributedDataParallelOptions } from '../../src/ddp/ddp';
import { crossEntropy } from '../../src/nn/losses';
import type { Module } from '../../src/nn/module';
import { AdamW } from '../../src/optim/adam';
import type { Optimizer } from '../../src/optim/optimizer';
import { SGD } from '../../src/optim/sgd';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { tidy } from '../../src/tensor/tidy';
import { Mlp, batchOf, flat } from '../unit/ddp/models';

export interface DdpArgs {
  readonly model: 'MLP' | 'transformer';
  readonly options: DistributedDataParallelOptions;
  readonly steps: number;
  /** Gradients travel as bfloat16. */
  readonly isCompressed?: boolean | undefined;
  /** After the steps, rank r makes r more inside `join`, on samples of its own. */
  readonly isUneven?: boolean | undefined;
}

export interface DdpRun {
  /** Of each backward, on this rank's samples. */
  readonly losses: readonly number[];
  /** Before clipping. */
  readonly norms: readonly number[];
  /** All parameters in the end, one after the other. */
  readonly parameters: readonly number[];
}

const MAX_NORM = 0.5;
/** Backwards of a step: all but the last inside noSync. */
const ACCUMULATED = 3;
/** Samples of a backward, over all ranks. */
const BATCH = 8;
const VOCABULARY = 11;
const CONTEXT = 6;

interface Task {
  readonly model: Module;
  readonly optimizerFor: (model: Module) => Optimizer;
  /** Samples `first` to `end` of the batch of a seed. */
  readonly loss: (model: Module, seed: number, first: number, end: number) => Promise<Tensor>;
}

/** The initial values depend on the seed, of which rank 0's counts. */
const taskOf: Readonly<Record<DdpArgs['model'], (seed: number) => Task>> = {
  MLP: (seed) => ({
    model: new Mlp(seed),
    optimizerFor: (model) => new AdamW(model.parameters(), { lr: 0.01, weightDecay: 0.1 }),
    loss: async (model, batch, first, end) => {
      const { x, labels } = batchOf(batch, BATCH);
      return crossEntropy(await model.forward(x.slice(0, first, end)), labels.slice(0, first, end));
    },
  }),

  transformer: (seed) => ({
    model: new Gpt(
      { vocabularySize: VOCABULARY, context: CONTEXT, layers: 2, heads: 2, width: 8, activationCheckpoint: false },
      new Generator(seed),
    ), // head and tokens share their weight
    // not Adam: the gradient of a key's bias is nothing but rounding, and Adam would make whole steps of it
    optimizerFor: (model) => new SGD(model.parameters(), { lr: 0.1, momentum: 0.9 }),
    loss: async (model, batch, first, end) => {
      const generator = new Generator(batch);
      const draw = (): Tensor =>
        Tensor.from(
          Int32Array.from({ length: BATCH * CONTEXT }, () => generator.nextBelow(VOCABULARY)),
          [BATCH, CONTEXT],
        );
      const [tokens, next] = [draw().slice(0, first, end), draw().slice(0, first, end)];
      const rows = (end - first) * CONTEXT;
      return crossEntropy((await model.forward(tokens)).reshape([rows, VOCABULARY]), next.reshape([rows]));
    },
  }),
};

export async function trainWithDdp(world: World, args: DdpArgs): Promise<DdpRun> {
  const { model, optimizerFor, loss } = taskOf[args.model](1 + world.rank);
  const ddp = new DistributedDataParallel(model, world.group, args.options);
  if (args.isCompressed === true) ddp.registerCommHook(bf16CompressHook);
  const optimizer = optimizerFor(model);
  const share = BATCH / world.worldSize;
  const losses: number[] = [];
  const norms: number[] = [];
  const backward = (seed: number): Promise<void> =>
    tidy(async () => {
      const own = await loss(ddp, seed, world.rank * share, (world.rank + 1) * share);
      losses.push(own.item());
      await own.div(ACCUMULATED).backward();
    });
  const finishStep = async (): Promise<void> => {
    await ddp.syncGradients();
    norms.push(await optimizer.clipGradNorm(MAX_NORM));
    await optimizer.step();
    optimizer.zeroGrad();
  };
  for (let step = 0; step < args.steps; step++) {
    await ddp.noSync(async () => {
      for (let part = 1; part < ACCUMULATED; part++) await backward(100 * step + part);
    });
    await backward(100 * step);
    await finishStep();
  }
  if (args.isUneven === true) {
    await ddp.join(async () => {
      for (let extra = 0; extra < world.rank; extra++) {
        await backward(10_000 + extra);
        await finishStep();
      }
    });
  }
  return { losses, norms, parameters: flat(model.parameters()) };
}
