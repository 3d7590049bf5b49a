/** Random training programs give the bits of DistributedDataParallel at every stage. */
import { Generator } from '../../../src/core/generator';
import { mseLoss } from '../../../src/nn/losses';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { AdamW } from '../../../src/optim/adam';
import type { Optimizer } from '../../../src/optim/optimizer';
import { SGD } from '../../../src/optim/sgd';
import { StepLR } from '../../../src/optim/step-lr';
import type { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';
import { count } from '../../helpers/counts';
import { wrap, type Way } from './training';
import { Zoo, type Branches } from './zoo';

const SIZES = [1, 2, 3, 4, 7];
const STEPS = 3;

/** What one optimizer step of a random program does; the same on every rank, but for the branches. */
interface Step {
  /** Backwards before the last, inside noSync. */
  readonly accumulated: number;
  /** By rank. */
  readonly branches: readonly Branches[];
  readonly clip: number | undefined;
  readonly normType: number;
  readonly zeroGrad: 'before' | 'after' | 'module' | 'twice';
  readonly evaluates: boolean;
  readonly syncsByHand: boolean;
}

function drawSteps(seed: number, size: number): Step[] {
  const generator = new Generator(seed);
  const pick = <T>(choices: readonly T[]): T => choices[generator.nextBelow(choices.length)] as T;
  return Array.from({ length: STEPS }, () => ({
    accumulated: pick([0, 0, 1, 2]),
    branches: Array.from({ length: size }, () => ({ left: pick([true, false]), right: pick([true, true, false]) })),
    clip: pick([undefined, 0.5, 1e-3]),
    normType: pick([2, 2, 1, Infinity]),
    zeroGrad: pick(['before', 'after', 'module', 'twice'] as const),
    evaluates: pick([true, false]),
    syncsByHand: pick([true, false]),
  }));
}

function optimizerFor(zoo: Zoo, seed: number): Optimizer {
  const decayed = zoo.parameters().filter(({ shape }) => shape.length > 1);
  const others = zoo.parameters().filter(({ shape }) => shape.length <= 1);
  const groups = [
    { params: decayed, weightDecay: 0.1 },
    { params: others, weightDecay: 0, lr: 0.05 },
  ];
  return seed % 3 === 0 ? new SGD(groups, { lr: 0.1, momentum: 0.9, nesterov: true }) : new AdamW(groups, { lr: 0.02 });
}

async function runProgram(world: World, way: Way, seed: number): Promise<unknown> {
  const generator = new Generator(1000 * seed + world.rank);
  const trained = await wrap(way, new Zoo(world.rank), (zoo) => optimizerFor(zoo, seed), world, {
    bucketCapMb: seed % 2 === 0 ? 25 : 60 / 2 ** 20,
  });
  const { model, module, forward, bits, optimizer } = trained;
  const scheduler = new StepLR(optimizer, { stepSize: 2, gamma: 0.5 });
  const seen: number[] = [];
  const backward = async (use: Branches): Promise<void> => {
    const loss = mseLoss(await forward(Tensor.randn([3, 3], { generator }), use), Tensor.ones([3, 2]));
    seen.push(loss.item());
    await loss.backward();
  };
  let hasGradients = false;
  for (const step of drawSteps(seed, world.worldSize)) {
    const use = step.branches[world.rank] as Branches;
    if (step.zeroGrad === 'before' || step.zeroGrad === 'twice' || hasGradients) optimizer.zeroGrad();
    for (let i = 0; i < step.accumulated; i++) await module.noSync(() => backward(use));
    await backward(use);
    if (step.syncsByHand || way === 'ddp') await module.syncGradients();
    if (step.clip !== undefined) seen.push(await optimizer.clipGradNorm(step.clip, { normType: step.normType }));
    await optimizer.step();
    scheduler.step();
    if (step.zeroGrad === 'module') module.zeroGrad();
    if (step.zeroGrad === 'after' || step.zeroGrad === 'twice') optimizer.zeroGrad();
    hasGradients = step.zeroGrad === 'before';
    if (!step.evaluates) continue;
    module.eval();
    seen.push((await noGrad(() => forward(Tensor.ones([1, 3]), use))).sum().item());
    module.train();
  }
  return { seen, bits: await bits(), calls: model.calls.item() };
}

for (let seed = 0; seed < count('random ZeRO programs', 10, 200); seed++) {
  const size = SIZES[seed % SIZES.length] as number;
  test(`random program ${seed} on ${size} ranks`, async () => {
    const run = (way: Way): Promise<unknown[]> =>
      runWorld(size, (world) => runProgram(world, way, seed), { portable: true, schedule: 'random', seed });
    const expected = await run('ddp');
    for (const stage of [0, 1, 2, 3] as const)
      expect({ stage, ranks: await run(stage) }).toEqual({ stage, ranks: expected });
  });
}
