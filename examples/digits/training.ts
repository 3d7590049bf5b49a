/** The training of the digits network, written once: it does not know which backend the world runs on. */
import {
  AdamW,
  CosineWithWarmup,
  DataLoader,
  DistributedDataParallel,
  DistributedSampler,
  Generator,
  Linear,
  ReLU,
  Sequential,
  Tensor,
  allReduceMean,
  allReduceSum,
  crossEntropy,
  noGrad,
  type Module,
  type TensorDataset,
  type World,
} from 'lockstep';
import type { Digits, Samples } from './dataset';

export interface Settings {
  readonly epochs: number;
  /** Samples of one step over all ranks, as near as the number of ranks allows. */
  readonly globalBatch: number;
  readonly learningRate: number;
  readonly seed: number;
}

export const defaultSettings: Settings = { epochs: 20, globalBatch: 64, learningRate: 3e-3, seed: 7 };

export interface EpochReport {
  readonly epoch: number;
  readonly loss: number;
  readonly trainAccuracy: number;
  readonly testAccuracy: number;
}

export interface TrainingResult {
  readonly finalLoss: number;
  readonly testAccuracy: number;
  /** All parameters of this rank, flat, in the order of `parameters()`. */
  readonly parameters: Float32Array;
}

/** 64 pixels, one hidden layer, 10 classes. */
export function buildModel(seed: number): Sequential {
  const generator = new Generator(seed);
  return new Sequential(new Linear(64, 128, { generator }), new ReLU(), new Linear(128, 10, { generator }));
}

/** Samples of one step on each rank. */
export function perRankBatch(settings: Settings, worldSize: number): number {
  return Math.max(1, Math.round(settings.globalBatch / worldSize));
}

/**
 * Train on every rank of `world`; `onEpoch` is called on each rank with figures over all ranks.
 * @param referenceWorldSize take the steps that a world of this size takes (to compare a single process with it)
 */
export async function trainDigits(
  world: World,
  digits: Digits,
  settings: Settings,
  onEpoch: (report: EpochReport) => void = () => undefined,
  referenceWorldSize = world.worldSize,
): Promise<TrainingResult> {
  const ddp = new DistributedDataParallel(buildModel(settings.seed), world.group);
  const batchSize = (perRankBatch(settings, referenceWorldSize) * referenceWorldSize) / world.worldSize;
  const sampler = new DistributedSampler(digits.train.length, {
    worldSize: world.worldSize,
    rank: world.rank,
    seed: settings.seed,
    dropLast: true,
  });
  const loader = new DataLoader(digits.train, { batchSize, sampler, dropLast: true });
  const optimizer = new AdamW(ddp.parameters(), { lr: settings.learningRate, weightDecay: 0.01 });
  const totalSteps = settings.epochs * loader.length;
  const scheduler = new CosineWithWarmup(optimizer, { warmupSteps: Math.ceil(totalSteps / 20), totalSteps });

  let report: EpochReport = { epoch: 0, loss: NaN, trainAccuracy: 0, testAccuracy: 0 };
  for (let epoch = 1; epoch <= settings.epochs; epoch++) {
    sampler.setEpoch(epoch);
    ddp.train();
    let lossSum = 0;
    let correct = 0;
    for await (const [pixels, labels] of loader) {
      const logits = await ddp.forward(pixels);
      const loss = crossEntropy(logits, labels);
      await loss.backward();
      await ddp.syncGradients();
      await optimizer.step();
      optimizer.zeroGrad();
      scheduler.step();
      lossSum += loss.item();
      correct += countCorrect(logits, labels);
    }
    const [loss, trainAccuracy] = await meanOverRanks(world, [
      lossSum / loader.length,
      correct / (loader.length * batchSize),
    ]);
    report = { epoch, loss, trainAccuracy, testAccuracy: await evaluate(ddp, world, digits.test) };
    onEpoch(report);
  }
  const parameters = Float32Array.from(
    [...ddp.parameters()].flatMap((parameter) => Array.from(parameter.data as Float32Array)),
  );
  ddp.detach();
  return { finalLoss: report.loss, testAccuracy: report.testAccuracy, parameters };
}

/** Share of the test samples that are classified rightly; each rank takes every worldSize-th batch. */
async function evaluate(model: Module, world: World, test: TensorDataset<Samples>): Promise<number> {
  model.eval();
  const loader = new DataLoader(test, { batchSize: 128 });
  let correct = 0;
  let batch = 0;
  for await (const [pixels, labels] of loader) {
    if (batch++ % world.worldSize !== world.rank) continue;
    correct += await noGrad(async () => countCorrect(await model.forward(pixels), labels));
  }
  const total = Tensor.from([correct]);
  await allReduceSum(total, world.group);
  return total.item() / test.length;
}

function countCorrect(logits: Tensor, labels: Tensor): number {
  const predicted = logits.argmax(1).data;
  return Array.from(labels.data as Int32Array).filter((label, row) => Number(predicted[row]) === label).length;
}

async function meanOverRanks(world: World, values: [number, number]): Promise<[number, number]> {
  const tensor = Tensor.from(Float64Array.from(values));
  await allReduceMean(tensor, world.group);
  return [tensor.data[0] as number, tensor.data[1] as number];
}
