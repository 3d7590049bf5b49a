/** The training, written once: it does not know how many ranks there are, nor on what they run. */
import {
  AdamW,
  CosineWithWarmup,
  DataLoader,
  DistributedSampler,
  Generator,
  ReduceOp,
  Tensor,
  crossEntropy,
  loadCheckpoint,
  noGrad,
  saveCheckpoint,
  tidy,
  zeroWrap,
  type Parameter,
  type World,
  type ZeroModule,
} from 'lockstep';
import { Gpt } from './model';
import type { Settings } from './settings';
import { TextWindows, type Text, type Window } from './text';

/** Old checkpoints that are kept. */
const KEEP = 3;
const VALIDATION_WINDOWS = 64;
const MAX_GRADIENT_NORM = 1;

export interface StepReport {
  readonly step: number;
  /** Mean over all ranks and the steps since the last report. */
  readonly loss: number;
  /** Before clipping. */
  readonly gradientNorm: number;
}

export interface TrainingEvents {
  readonly onStart: (step: number, parameters: number) => void;
  /** On every rank, every `reportEvery` steps and after the last one. */
  readonly onReport: (report: StepReport) => void;
  readonly onSaved: (path: string) => void;
}

export interface TrainingResult {
  readonly step: number;
  readonly isStopped: boolean;
  readonly validationLoss: number;
  readonly model: ZeroModule<Gpt>;
}

/**
 * Train on this rank; all ranks call it.
 * @param shouldStop asked after every step; all ranks stop, after a checkpoint, once one of them says yes
 */
export async function trainGpt(
  world: World,
  text: Text,
  settings: Settings,
  events: TrainingEvents,
  shouldStop: () => boolean = () => false,
): Promise<TrainingResult> {
  const { group } = world;
  const { module: model, optimizer } = await zeroWrap(
    () => buildGpt(text, settings),
    (gpt) => new AdamW(weightDecayGroups(gpt), { lr: settings.learningRate }),
    group,
    { stage: settings.stage, precision: settings.precision },
  );
  const windows = new TextWindows(text.train, settings.context);
  const { worldSize, rank } = world;
  const sampler = new DistributedSampler(windows.length, { worldSize, rank, seed: settings.seed, dropLast: true });
  const loader = new DataLoader(windows, { batchSize: settings.batch, sampler, dropLast: true });
  const warmupSteps = Math.ceil(settings.steps / 20);
  const scheduler = new CosineWithWarmup(optimizer, { warmupSteps, totalSteps: settings.steps, minRatio: 0.1 });

  const state = { model, optimizer, scheduler, sampler };
  let step = 0;
  if (settings.resume && settings.checkpoint !== undefined) {
    ({ step } = await loadCheckpoint(settings.checkpoint, state, group));
  }
  const save = async (): Promise<void> => {
    if (settings.checkpoint === undefined) return;
    events.onSaved(await saveCheckpoint(settings.checkpoint, { ...state, step }, group, { keep: KEEP }));
  };

  events.onStart(step, numElements(model.parameters()));
  const batches = endless(loader, sampler);
  let lossSum = 0;
  let losses = 0;
  let isStopped = false;
  while (step < settings.steps && !isStopped) {
    lossSum += await accumulate(model, batches, settings.accumulate);
    losses++;
    const gradientNorm = await optimizer.clipGradNorm(MAX_GRADIENT_NORM);
    await optimizer.step();
    optimizer.zeroGrad();
    scheduler.step();
    step++;
    const isReport = step % settings.reportEvery === 0 || step === settings.steps;
    isStopped = await anyRank(world, shouldStop());
    if (isReport || isStopped) {
      events.onReport({ step, loss: await meanOverRanks(world, lossSum / losses), gradientNorm });
      [lossSum, losses] = [0, 0];
    }
    if (settings.saveEvery > 0 && step % settings.saveEvery === 0 && step < settings.steps && !isStopped) await save();
  }
  await save();
  return { step, isStopped, validationLoss: await evaluate(world, model, text, settings), model };
}

function buildGpt(text: Text, settings: Settings): Gpt {
  const { context, layers, heads, width, activationCheckpoint } = settings;
  const size = { vocabularySize: text.vocabulary.length, context, layers, heads, width };
  return new Gpt({ ...size, activationCheckpoint }, new Generator(settings.seed));
}

/** Matrices decay, biases and norms do not. */
function weightDecayGroups(model: Gpt): { params: Parameter[]; weightDecay: number }[] {
  const parameters = model.parameters();
  return [
    { params: parameters.filter(({ shape }) => shape.length > 1), weightDecay: 0.1 },
    { params: parameters.filter(({ shape }) => shape.length <= 1), weightDecay: 0 },
  ];
}

/** The gradient of `count` batches together; returns their mean loss. */
async function accumulate(
  model: ZeroModule<Gpt>,
  batches: AsyncIterator<Window, never>,
  count: number,
): Promise<number> {
  const backward = (): Promise<number> =>
    tidy(async () => {
      const [inputs, targets] = (await batches.next()).value;
      const loss = await lossOf(model, inputs, targets);
      await loss.div(count).backward();
      return loss.item();
    });
  let total = 0;
  for (let i = 1; i < count; i++) total += await model.noSync(backward);
  return (total + (await backward())) / count;
}

async function lossOf(model: ZeroModule<Gpt>, inputs: Tensor, targets: Tensor): Promise<Tensor> {
  const logits = await model.forward(inputs);
  return crossEntropy(logits.reshape([targets.size, -1]), targets.reshape([targets.size]));
}

/** Batches of one epoch after the other. A sampler that was loaded goes on where it was. */
async function* endless(loader: DataLoader<Window>, sampler: DistributedSampler): AsyncGenerator<Window, never> {
  if (loader.length < 1) throw new Error('the text is too short for one batch on every rank.');
  for (;;) {
    yield* loader as AsyncIterable<Window>;
    sampler.setEpoch(sampler.epoch + 1);
  }
}

/** Mean loss on the text that was not trained on; each rank takes its share. */
async function evaluate(world: World, model: ZeroModule<Gpt>, text: Text, settings: Settings): Promise<number> {
  const windows = new TextWindows(text.validation, settings.context);
  const count = Math.min(VALIDATION_WINDOWS, Math.floor(windows.length / world.worldSize));
  if (count < 1) return NaN;
  model.eval();
  let sum = 0;
  for (let i = 0; i < count; i++) {
    const [inputs, targets] = windows.get(i * world.worldSize + world.rank);
    sum += await noGrad(() => tidy(async () => (await lossOf(model, inputs.unsqueeze(0), targets)).item()));
  }
  model.train();
  return meanOverRanks(world, sum / count);
}

async function meanOverRanks(world: World, value: number): Promise<number> {
  const tensor = Tensor.from(Float64Array.of(value));
  await world.group.allReduce(tensor, ReduceOp.Average);
  return tensor.item();
}

async function anyRank(world: World, flag: boolean): Promise<boolean> {
  const tensor = Tensor.from(Uint8Array.of(flag ? 1 : 0));
  await world.group.allReduce(tensor, ReduceOp.Max);
  return tensor.item() === 1;
}

function numElements(parameters: readonly Tensor[]): number {
  return parameters.reduce((total, { size }) => total + size, 0);
}
