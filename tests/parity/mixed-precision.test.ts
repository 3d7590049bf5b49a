/** Training in 16 bits reaches what float32 reaches, on the digits and two ranks. */
import { loadDigits, type Samples } from '../../examples/digits/dataset';
import { autocast } from '../../src/amp/autocast';
import { GradScaler, type GradScalerOptions } from '../../src/amp/grad-scaler';
import type { HalfDType } from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { DistributedDataParallel } from '../../src/ddp/ddp';
import { Tanh } from '../../src/nn/activations';
import { Linear } from '../../src/nn/linear';
import { crossEntropy } from '../../src/nn/losses';
import { Sequential } from '../../src/nn/sequential';
import { AdamW } from '../../src/optim/adam';
import type { World } from '../../src/process-group/world';
import { noGrad } from '../../src/tensor/gradient-mode';
import type { Tensor } from '../../src/tensor/tensor';
import { tidy } from '../../src/tensor/tidy';
import { runWorld } from '../../src/testing/run-world';
import { withFullParameters } from '../../src/zero/full-parameters';
import { zeroWrap } from '../../src/zero/zero';
import type { ZeroOptions } from '../../src/zero/zero-options';

const RANKS = 2;
const STEPS = 40;
const BATCH = 64;
/** Far too much for float16. */
const initScale = 2 ** 24;

interface Loop {
  readonly forward: (pixels: Tensor) => Promise<Tensor>;
  /** From a loss to the end of the step. @returns whether the step was made */
  readonly learn: (loss: Tensor) => Promise<boolean>;
  readonly scale: () => number | undefined;
  readonly readParameters: (read: () => unknown[]) => Promise<unknown[]>;
}

interface Result {
  readonly accuracy: number;
  /** By step, whether it was made. */
  readonly steps: readonly boolean[];
  readonly scale: number | undefined;
  readonly parameters: readonly unknown[];
}

const digits = loadDigits();

function rows({ tensors: [pixels, labels] }: typeof digits.train, start: number, count: number): Samples {
  return [pixels.slice(0, start, start + count), labels.slice(0, start, start + count)];
}

/** Train until so many steps were made, and test. */
async function train(world: World, makeLoop: (world: World, model: Sequential) => Promise<Loop>): Promise<Result> {
  const generator = new Generator(5);
  const model = new Sequential(new Linear(64, 32, { generator }), new Tanh(), new Linear(32, 10, { generator }));
  const { forward, learn, scale, readParameters } = await makeLoop(world, model);
  const steps: boolean[] = [];
  const lastStart = digits.train.length - BATCH;
  for (let made = 0; made < STEPS && steps.length < 2 * STEPS; made = steps.filter(Boolean).length) {
    await tidy(async () => {
      const [pixels, labels] = rows(digits.train, ((made * RANKS + world.rank) * BATCH) % lastStart, BATCH);
      steps.push(await learn(crossEntropy(await forward(pixels), labels)));
    });
  }
  const [pixels, labels] = rows(digits.test, 0, digits.test.length);
  const guesses = (await noGrad(() => forward(pixels))).argmax(1);
  const accuracy = guesses.eq(labels).to('float32').mean().item();
  const parameters = await readParameters(() => model.parameters().map(({ data }) => data.slice()));
  return { accuracy, steps, scale: scale(), parameters };
}

interface Precision {
  /** Computed in; undefined for float32. */
  readonly autocast?: HalfDType;
  /** Stored in; default float32. */
  readonly storage?: HalfDType;
  readonly scaler?: GradScalerOptions;
}

/** DistributedDataParallel, autocast and a GradScaler. */
async function runDdp(precision: Precision): Promise<Result[]> {
  const makeLoop = async (world: World, model: Sequential): Promise<Loop> => {
    if (precision.storage !== undefined) model.to(precision.storage);
    const ddp = new DistributedDataParallel(model, world.group);
    const optimizer = new AdamW(ddp.parameters(), { lr: 0.01 });
    const scaler = new GradScaler({ enabled: precision.scaler !== undefined, ...precision.scaler });
    const casts = { dtype: precision.autocast, enabled: precision.autocast !== undefined };
    return {
      forward: (pixels) => autocast(casts, () => ddp.forward(pixels)),
      learn: async (loss) => {
        await scaler.scale(loss).backward();
        await ddp.syncGradients();
        const isMade = await scaler.step(optimizer);
        await scaler.update();
        optimizer.zeroGrad();
        return isMade;
      },
      scale: () => scaler.getScale(),
      readParameters: async (read) => read(),
    };
  };
  return runWorld(RANKS, (world) => train(world, makeLoop));
}

/** zeroWrap, which casts and scales by itself. */
async function runZero(options: ZeroOptions): Promise<Result[]> {
  const makeLoop = async (world: World, model: Sequential): Promise<Loop> => {
    const made = new AdamW(model.parameters(), { lr: 0.01 });
    const { module, optimizer } = await zeroWrap(model, made, world.group, options);
    return {
      forward: (pixels) => module.forward(pixels),
      learn: async (loss) => {
        await loss.backward();
        await optimizer.step();
        optimizer.zeroGrad();
        return !optimizer.isStepSkipped;
      },
      scale: () => optimizer.lossScale,
      readParameters: (read) => withFullParameters(module, read),
    };
  };
  return runWorld(RANKS, (world) => train(world, makeLoop));
}

let float32: Result;

beforeAll(async () => {
  float32 = (await runDdp({}))[0] as Result;
});

test('float32 learns the digits', () => {
  expect(float32.accuracy).toBeGreaterThan(0.9);
});

describe('bfloat16 reaches the accuracy of float32, within a point', () => {
  test.each<[string, () => Promise<Result[]>]>([
    ['computed in', () => runDdp({ autocast: 'bfloat16' })],
    ['stored and computed in', () => runDdp({ autocast: 'bfloat16', storage: 'bfloat16' })],
    ['ZeRO, stage 1', () => runZero({ stage: 1, precision: 'bfloat16' })],
    ['ZeRO, stage 2', () => runZero({ stage: 2, precision: 'bfloat16' })],
    ['ZeRO, stage 3', () => runZero({ stage: 3, precision: 'bfloat16' })],
  ])('%s', async (_name, run) => {
    const [first] = await run();
    expect(first?.accuracy).toBeGreaterThan(float32.accuracy - 0.01);
  });
});

describe('float16 with a scale that overflows at first recovers on all ranks in the same step', () => {
  const lossScale = { initScale };

  test.each<[string, () => Promise<Result[]>]>([
    ['computed in', () => runDdp({ autocast: 'float16', scaler: lossScale })],
    ['stored and computed in', () => runDdp({ autocast: 'float16', storage: 'float16', scaler: lossScale })],
    ["by DeepSpeed's rule", () => runDdp({ autocast: 'float16', scaler: { rule: 'deepspeed', initScale } })],
    ['ZeRO, stage 1', () => runZero({ stage: 1, precision: 'float16', lossScale })],
    ['ZeRO, stage 2', () => runZero({ stage: 2, precision: 'float16', lossScale })],
    ['ZeRO, stage 3', () => runZero({ stage: 3, precision: 'float16', lossScale })],
  ])('%s', async (_name, run) => {
    const results = await run();
    const [{ steps, accuracy, scale, parameters }] = results as [Result];
    const skipped = steps.filter((isMade) => !isMade).length;
    expect(skipped).toBeGreaterThan(0);
    expect(steps.slice(skipped)).not.toContain(false); // all at the beginning, then never again
    expect(scale).toBeLessThan(initScale);
    expect(accuracy).toBeGreaterThan(float32.accuracy - 0.01);
    for (const other of results) {
      expect(other.steps).toEqual(steps);
      expect(other.scale).toBe(scale);
      expect(other.parameters).toEqual(parameters);
    }
  });
});
