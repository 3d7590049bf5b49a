/** Some steps of the digits example, the same on every backend and at every world size. */
import {
  AdamW,
  DistributedDataParallel,
  crossEntropy,
  zeroWrap,
  type Tensor,
  type World,
  type ZeroOptions,
} from 'lockstep';
import { loadDigits } from '../../examples/digits/dataset';
import { buildModel } from '../../examples/digits/training';

/** Samples of a step over all ranks. */
const GLOBAL_BATCH = 64;
const SEED = 7;
const SETTINGS = { lr: 3e-3, weightDecay: 0.01 };

export interface StepsResult {
  /** Of this rank's samples, by step. */
  readonly losses: readonly number[];
  /** All, flat. */
  readonly parameters: Float32Array;
}

/** What the wrappers have in common. */
interface Trainer {
  forward(pixels: Tensor): Promise<Tensor>;
  step(): Promise<void>;
}

/** The model before the first step. */
export function startingParameters(): Float32Array {
  return flatten(buildModel(SEED).parameters());
}

export async function trainWithDdp(world: World, numSteps: number): Promise<StepsResult> {
  const model = buildModel(SEED);
  const ddp = new DistributedDataParallel(model, world.group);
  const optimizer = new AdamW(ddp.parameters(), SETTINGS);
  const losses = await train(world, numSteps, {
    forward: (pixels) => ddp.forward(pixels),
    async step() {
      await ddp.syncGradients();
      await optimizer.step();
      optimizer.zeroGrad();
    },
  });
  ddp.detach();
  return { losses, parameters: flatten(model.parameters()) };
}

export async function trainWithZero(world: World, numSteps: number, options: ZeroOptions): Promise<StepsResult> {
  const model = buildModel(SEED);
  const { module, optimizer } = await zeroWrap(model, new AdamW(model.parameters(), SETTINGS), world.group, options);
  const losses = await train(world, numSteps, {
    forward: (pixels) => module.forward(pixels),
    async step() {
      await optimizer.step();
      optimizer.zeroGrad();
    },
  });
  await module.detach(); // makes the parameters whole
  return { losses, parameters: flatten(model.parameters()) };
}

async function train(world: World, numSteps: number, trainer: Trainer): Promise<number[]> {
  const { train: samples } = loadDigits();
  const losses: number[] = [];
  const numOwn = GLOBAL_BATCH / world.worldSize;
  for (let step = 0; step < numSteps; step++) {
    const start = step * GLOBAL_BATCH + world.rank * numOwn;
    const [pixels, labels] = samples.getBatch(Array.from({ length: numOwn }, (_, index) => start + index));
    const loss = crossEntropy(await trainer.forward(pixels), labels);
    await loss.backward();
    await trainer.step();
    losses.push(loss.item());
  }
  return losses;
}

function flatten(parameters: Iterable<Tensor>): Float32Array {
  return Float32Array.from([...parameters].flatMap((parameter) => Array.from(parameter.data as Float32Array)));
}

/** The largest difference, relative to the largest of |old|, |expected| and |expected - old|, and to what is next to nothing. */
export function worstRelative(found: Float32Array, expected: Float32Array, old: Float32Array): number {
  if (found.length !== expected.length) return Infinity;
  return expected.reduce((worst, value, i) => {
    const before = old[i] as number;
    const scale = Math.max(Math.abs(before), Math.abs(value), Math.abs(value - before), 1e-30);
    const difference = Math.abs((found[i] as number) - value) / scale;
    return Number.isNaN(difference) ? Infinity : Math.max(worst, difference);
  }, 0);
}
