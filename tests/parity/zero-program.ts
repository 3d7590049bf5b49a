/** The training of the ZeRO parity tests: one loop for DDP and every stage, whatever the number of ranks and the backend. */
import { createHash } from 'node:crypto';
import { Gpt } from '../../examples/gpt/model';
import { Generator } from '../../src/core/generator';
import { crossEntropy } from '../../src/nn/losses';
import type { Module } from '../../src/nn/module';
import { AdamW } from '../../src/optim/adam';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { tidy } from '../../src/tensor/tidy';
import { Mlp, batchOf, lossOf } from '../unit/ddp/models';
import { wrap, type Way } from '../unit/zero/training';

export interface ParityArgs {
  readonly model: 'MLP' | 'transformer';
  readonly way: Way;
  readonly steps: number;
}

/** Everything that a step computed on one rank, and a digest of the bits of each parameter in the end. */
export interface ParityRun {
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  readonly parameters: Readonly<Record<string, string>>;
}

export const MAX_NORM = 0.5;
/** Backwards of a step: all but the last inside noSync. */
const ACCUMULATED = 3;
/** MiB; several buckets in either model. */
const bucketCapMb = 600 / 2 ** 20;

const VOCABULARY = 11;
const CONTEXT = 6;

interface Task {
  readonly model: Module;
  /** The loss of samples of their own for each seed. */
  readonly loss: (model: { forward: Module['forward'] }, seed: number) => Promise<Tensor>;
}

/** The initial values depend on the seed, of which rank 0's counts. */
function taskOf(model: ParityArgs['model'], seed: number): Task {
  if (model === 'MLP') {
    return { model: new Mlp(seed), loss: (mlp, batch) => lossOf(mlp as Module, batchOf(batch, 4)) };
  }
  const size = { vocabularySize: VOCABULARY, context: CONTEXT, layers: 2, heads: 2, width: 8 };
  return {
    model: new Gpt({ ...size, activationCheckpoint: false }, new Generator(seed)), // head and tokens share their weight
    loss: async (gpt, batch) => {
      const generator = new Generator(batch);
      const draw = (): Int32Array => Int32Array.from({ length: 2 * CONTEXT }, () => generator.nextBelow(VOCABULARY));
      const logits = await gpt.forward(Tensor.from(draw(), [2, CONTEXT]));
      return crossEntropy(logits.reshape([2 * CONTEXT, VOCABULARY]), Tensor.from(draw()));
    },
  };
}

/** Matrices decay; biases and norms do not, and learn faster. */
function optimizerFor(model: Module): AdamW {
  const parameters = model.parameters();
  return new AdamW(
    [
      { params: parameters.filter(({ shape }) => shape.length > 1), weightDecay: 0.1 },
      { params: parameters.filter(({ shape }) => shape.length <= 1), weightDecay: 0, lr: 0.02 },
    ],
    { lr: 0.01 },
  );
}

export async function trainForParity(world: World, { model: name, way, steps }: ParityArgs): Promise<ParityRun> {
  const { model, loss } = taskOf(name, 1 + world.rank);
  const { module, forward, optimizer, bits } = await wrap(way, model, optimizerFor, world, { bucketCapMb });
  const losses: number[] = [];
  const norms: number[] = [];
  for (let step = 0; step < steps; step++) {
    const backward = (part: number): Promise<void> =>
      tidy(async () => {
        const share = (await loss({ forward }, 1000 * (ACCUMULATED * step + part) + world.rank)).div(ACCUMULATED);
        losses.push(share.item());
        await share.backward();
      });
    await module.noSync(async () => {
      for (let part = 1; part < ACCUMULATED; part++) await backward(part);
    });
    await backward(0);
    norms.push(await optimizer.clipGradNorm(MAX_NORM));
    await optimizer.step();
    optimizer.zeroGrad();
  }
  const names = model.namedParameters().map(([parameter]) => parameter);
  const digests = (await bits()).map((hex) => createHash('sha1').update(hex).digest('hex').slice(0, 12));
  return { losses, norms, parameters: Object.fromEntries(names.map((key, index) => [key, digests[index] as string])) };
}
