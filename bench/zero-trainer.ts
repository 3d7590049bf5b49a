/** The steps that bench/zero.ts times: one model, trained with DDP and with each stage of ZeRO. */
import {
  AdamW,
  DistributedDataParallel,
  Generator,
  Linear,
  ReLU,
  Sequential,
  Tensor,
  crossEntropy,
  tidy,
  zeroWrap,
  type Module,
  type World,
} from 'lockstep';
import { Gpt } from '../examples/gpt/model';

export const WAYS = ['DDP', 1, 2, 3] as const;
export type Way = (typeof WAYS)[number];

export const MODELS = ['MLP 784-1024-1024-10', 'GPT of 0.8 M'] as const;
export type ModelName = (typeof MODELS)[number];

/** Trains one model by one step. */
export type Trainer = () => Promise<void>;

const BATCH = 64;
const VOCABULARY = 96;
const WINDOWS = 4;
const CONTEXT = 64;

/** A trainer for each way, each with a model of its own. All ranks call it. */
export async function makeTrainers(world: World, name: ModelName): Promise<Map<Way, Trainer>> {
  const trainers = new Map<Way, Trainer>();
  for (const way of WAYS) trainers.set(way, await makeTrainer(world, name, way));
  return trainers;
}

async function makeTrainer({ group, rank }: World, name: ModelName, way: Way): Promise<Trainer> {
  const model = buildModel(name);
  const inner = new AdamW(model.parameters(), { lr: 1e-4 });
  const { module, optimizer } =
    way === 'DDP'
      ? { module: new DistributedDataParallel(model, group), optimizer: inner }
      : await zeroWrap(model, inner, group, { stage: way });
  const { inputs, targets } = batch(name, rank);
  return async () => {
    await tidy(async () => {
      const output = await module.forward(inputs);
      await crossEntropy(output.reshape([targets.size, -1]), targets).backward();
    });
    await optimizer.step();
    optimizer.zeroGrad();
  };
}

function buildModel(name: ModelName): Module {
  const generator = new Generator(1);
  if (name === 'GPT of 0.8 M') {
    const size = { vocabularySize: VOCABULARY, context: CONTEXT, layers: 4, heads: 4, width: 128 };
    return new Gpt({ ...size, activationCheckpoint: false }, generator);
  }
  return new Sequential(
    new Linear(784, 1024, { generator }),
    new ReLU(),
    new Linear(1024, 1024, { generator }),
    new ReLU(),
    new Linear(1024, 10, { generator }),
  );
}

function batch(name: ModelName, seed: number): { inputs: Tensor; targets: Tensor } {
  const generator = new Generator(seed);
  const draw = (size: number, below: number): Int32Array =>
    Int32Array.from({ length: size }, () => generator.nextBelow(below));
  if (name === 'GPT of 0.8 M') {
    const size = WINDOWS * CONTEXT;
    return {
      inputs: Tensor.from(draw(size, VOCABULARY), [WINDOWS, CONTEXT]),
      targets: Tensor.from(draw(size, VOCABULARY)),
    };
  }
  return { inputs: Tensor.randn([BATCH, 784], { generator }), targets: Tensor.from(draw(BATCH, 10)) };
}
