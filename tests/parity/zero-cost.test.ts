/**
 * What each stage holds and sends: the formulas of the ZeRO paper (arXiv 1910.02054, sections 5 and 7) for Adam, with P
 * parameters on N ranks.
 */
import { Gpt } from '../../examples/gpt/model';
import { byteSize } from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { memory } from '../../src/core/memory-account';
import { Adam } from '../../src/optim/adam';
import { GradientNorm } from '../../src/optim/gradient-norm';
import { Tensor } from '../../src/tensor/tensor';
import { tidy } from '../../src/tensor/tidy';
import { runWorld } from '../../src/testing/index';
import { planMemory, type StageMemory } from '../../src/zero/memory-plan';
import { zeroWrap } from '../../src/zero/zero';
import type { ZeroOptions, ZeroStage } from '../../src/zero/zero-options';
import { count } from '../helpers/counts';
import { optionsFor, stepCosts, type Layers, type StepCost } from './zero-step-cost';

const STAGES = [0, 1, 2, 3] as const;
const SIZES = [4, 2, 1, 3, 7].slice(0, count('ZeRO cost: world sizes', 2, 5));
const LAYERS = count('ZeRO cost: layers', 8, 64);

/** A model that the ranks divide. */
const evenLayers = (size: number): Layers => ({ layers: LAYERS, width: size === 3 ? 15 : size === 7 ? 14 : 16 });
const numParameters = ({ layers, width }: Layers): number => layers * width ** 2;

/** Bytes a parameter: parameters, gradients, optimizer. */
const HELD: Record<'float32' | 'mixed', Record<ZeroStage, (n: number) => readonly [number, number, number]>> = {
  float32: {
    0: () => [4, 4, 8], // 16
    1: (n) => [4, 4, 8 / n], // 8 + 8/N
    2: (n) => [4, 4 / n, 8 / n], // 4 + 12/N
    3: (n) => [4 / n, 4 / n, 8 / n], // 16/N
  },
  mixed: {
    0: () => [2, 2, 12], // 16
    1: (n) => [2, 2, 12 / n], // 4 + 12/N
    2: (n) => [2, 2 / n, 12 / n], // 2 + 14/N
    3: (n) => [2 / n, 2 / n, 12 / n], // 16/N
  },
};

/** How often each collective sends the model, in (N-1)/N of its bytes: 2 in all for stages 0 to 2, 3 for stage 3. */
const SENT: Record<ZeroStage, StepCost['sent']> = {
  0: { allReduce: 2, reduceScatter: 0, allGather: 0 },
  1: { allReduce: 0, reduceScatter: 1, allGather: 1 },
  2: { allReduce: 0, reduceScatter: 1, allGather: 1 },
  3: { allReduce: 0, reduceScatter: 1, allGather: 2 },
};

/** The digits from which every rank makes the norm of all gradients. */
const NORM_BYTES = new GradientNorm(2).toParts().values.byteLength;

/** What is sent besides gradients and parameters, by all-reduces of so many bytes in all. */
function extraBytes(size: number, { stage, precision, findUnusedParameters = true }: ZeroOptions): number {
  const usedMap = findUnusedParameters ? LAYERS : 0; // a byte for each parameter: whether a rank has used it
  const isSharded = stage !== 0 && size > 1;
  const verdict = precision === 'float16' ? 1 : 0; // whether a gradient has overflowed
  return usedMap + (isSharded ? NORM_BYTES + verdict : 0);
}

/** The same on every rank. */
async function stepCost(size: number, options: ZeroOptions): Promise<StepCost> {
  const ranks = await stepCosts(size, evenLayers(size), options);
  for (const rank of ranks) expect(rank).toEqual(ranks[0]);
  return ranks[0] as StepCost;
}

function expectSent({ sent, sentTotal }: StepCost, size: number, options: ZeroOptions, times: StepCost['sent']): void {
  const share = (size - 1) / size;
  const model = share * numParameters(evenLayers(size)) * byteSize(options.precision ?? 'float32');
  const extra = 2 * share * extraBytes(size, options);
  expect(sent.reduceScatter).toBeCloseTo(times.reduceScatter * model, 6);
  expect(sent.allGather).toBeCloseTo(times.allGather * model, 6);
  expect(sent.allReduce).toBeCloseTo(times.allReduce * model + extra, 6);
  expect(sentTotal).toBeCloseTo((times.reduceScatter + times.allGather + times.allReduce) * model + extra, 6);
}

describe.each(['float32', 'bfloat16', 'float16'] as const)('in %s', (precision) => {
  describe.each(STAGES)('stage %i', (stage) => {
    test.each(SIZES)('on %i ranks holds and sends what the formulas say', async (size) => {
      const options = optionsFor(stage, precision);
      const cost = await stepCost(size, options);
      expectSent(cost, size, options, SENT[stage]);

      const { live, peak, peakTotal } = cost;
      const params = numParameters(evenLayers(size));
      const held = HELD[precision === 'float32' ? 'float32' : 'mixed'][stage](size);
      const [parameters, gradients, optimizer] = held.map((bytes) => bytes * params) as [number, number, number];
      expect(live).toEqual({ parameters, gradients, optimizer, activations: 0, communication: 0, other: 0 });
      const total = parameters + gradients + optimizer;
      const plan = planMemory({ params, worldSize: size, precision })[stage];
      expect(plan).toEqual({ stage, parameters, gradients, optimizer, total });

      // On top while a step runs, in layers: what stage 3 has gathered, the gradient that is computed, buckets in flight.
      const [gathered, computed, buckets] = stage === 3 ? [2, 1, 2] : stage === 2 ? [0, 1, 3] : [0, 0, 0];
      const layer = evenLayers(size).width ** 2 * byteSize(precision);
      expect(peak.parameters).toBeLessThanOrEqual(parameters + gathered * layer);
      expect(peak.gradients).toBeLessThanOrEqual(gradients + computed * layer);
      expect(peak.optimizer).toBe(optimizer);
      expect(peak.communication).toBeLessThanOrEqual(buckets * layer + NORM_BYTES);
      expect(peakTotal).toBeGreaterThanOrEqual(total);
      const besides = (gathered + computed + buckets) * layer + NORM_BYTES + peak.activations + peak.other;
      expect(peakTotal).toBeLessThanOrEqual(total + besides);
    });
  });
});

describe.each(SIZES)('a step on %i ranks sends', (size) => {
  const layerElements = evenLayers(size).width ** 2;

  test.each<[string, ZeroOptions, StepCost['sent']]>([
    ['no used map without findUnusedParameters', { stage: 2, findUnusedParameters: false }, SENT[2]],
    ['the same without prefetch', { stage: 3, prefetch: false }, SENT[3]],
    ['the model twice without reshardAfterForward', { stage: 3, reshardAfterForward: false }, SENT[2]],
    ['the model twice if parameters persist', { stage: 3, persistenceThreshold: layerElements }, SENT[2]],
  ])('%s', async (_name, options, times) => {
    expectSent(await stepCost(size, options), size, options, times);
  });
});

describe.each(STAGES)('stage %i is within 3 % of the formula', (stage) => {
  test('where the ranks do not divide the layers', async () => {
    const model = { layers: LAYERS, width: 31 };
    const options = { params: numParameters(model), worldSize: 4, precision: 'bfloat16' } as const;
    const plan = planMemory(options)[stage] as StageMemory;
    for (const { live } of await stepCosts(4, model, optionsFor(stage, 'bfloat16'))) expectPlanned(live, plan);
  });

  test('with the GPT example and the default options', async () => {
    const size = { vocabularySize: 64, context: 16, layers: 4, heads: 2, width: 32, activationCheckpoint: false };
    const ranks = await runWorld(4, async (world) => {
      const { module, optimizer } = await zeroWrap(
        () => new Gpt(size, new Generator(1)),
        (gpt) => new Adam(gpt.parameters()),
        world.group,
        optionsFor(stage, 'float16'),
      );
      await tidy(async () => (await module.forward(Tensor.from(Int32Array.of(1, 2, 3), [1, 3]))).mean().backward());
      await optimizer.step();
      const params = module.parameters().reduce((sum, parameter) => sum + parameter.size, 0);
      const plan = planMemory({ params, worldSize: 4, precision: 'float16' })[stage] as StageMemory;
      return { live: memory.stats().live, plan };
    });
    for (const { live, plan } of ranks) expectPlanned(live, plan);
  });
});

function expectPlanned(live: StepCost['live'], plan: StageMemory): void {
  for (const category of ['parameters', 'gradients', 'optimizer'] as const) {
    const ratio = live[category] / plan[category];
    expect({ category, ratio, isClose: Math.abs(ratio - 1) < 0.03 }).toEqual({ category, ratio, isClose: true });
  }
}
