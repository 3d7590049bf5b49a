/** A small training run with everything that a checkpoint has to bring back. */
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CheckpointState } from '../../../src/checkpoint/training-state';
import { Generator } from '../../../src/core/generator';
import { DistributedSampler } from '../../../src/data/distributed-sampler';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Tanh } from '../../../src/nn/activations';
import { Dropout } from '../../../src/nn/dropout';
import { Linear } from '../../../src/nn/linear';
import { mseLoss } from '../../../src/nn/losses';
import { Module } from '../../../src/nn/module';
import { AdamW } from '../../../src/optim/adam';
import { CosineWithWarmup } from '../../../src/optim/cosine-with-warmup';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import type { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld, type RunWorldOptions } from '../../../src/testing/run-world';

export const SAMPLES = 24;

export class Mlp extends Module {
  readonly fc1: Linear;
  readonly drop = new Dropout(0.25);
  readonly act = new Tanh();
  readonly fc2: Linear;
  readonly seen = this.registerBuffer('seen', Tensor.zeros([1]));

  constructor(seed: number, width = 8) {
    super();
    const generator = new Generator(seed);
    this.fc1 = new Linear(4, width, { generator });
    this.fc2 = new Linear(width, 2, { generator });
  }

  override async forward(x: Tensor): Promise<Tensor> {
    const hidden = await this.drop.forward(await this.act.forward(await this.fc1.forward(x)));
    (this.seen.data as Float32Array)[0]! += x.shape[0] as number;
    return this.fc2.forward(hidden);
  }
}

export interface Run {
  readonly state: CheckpointState & { readonly model: DistributedDataParallel<Mlp>; readonly optimizer: AdamW };
  /** Train so many steps, and give the losses. */
  train(steps: number): Promise<number[]>;
}

/** The same on every rank, but for the random numbers; `seed` makes the initial values. */
export function startRun(group: ProcessGroup, seed: number): Run {
  const module = new Mlp(seed);
  const model = new DistributedDataParallel(module, group);
  const [first, ...others] = model.parameters();
  const optimizer = new AdamW([{ params: [first!], weightDecay: 0.1 }, { params: others }], { lr: 0.05 });
  const scheduler = new CosineWithWarmup(optimizer, { warmupSteps: 2, totalSteps: 8 });
  const sampler = new DistributedSampler(SAMPLES, { worldSize: group.size, rank: group.rank, seed: 3 });
  const generator = new Generator(100 + group.rank);
  const inputs = Tensor.randn([SAMPLES, 4], { generator: new Generator(1) });
  const targets = Tensor.randn([SAMPLES, 2], { generator: new Generator(2) });

  async function train(steps: number): Promise<number[]> {
    const losses = [];
    for (const index of sampler) {
      const noise = generator.nextFloat() / 8;
      const x = inputs.slice(0, index, index + 1).add(noise);
      const loss = mseLoss(await model.forward(x), targets.slice(0, index, index + 1));
      await loss.backward();
      await model.syncGradients();
      await optimizer.step();
      optimizer.zeroGrad();
      scheduler.step();
      losses.push(loss.item());
      if (losses.length === steps) break;
    }
    return losses;
  }
  return { state: { model, optimizer, scheduler, sampler, generator }, train };
}

export const bitsOf = (run: Run): Record<string, number[]> => {
  const state = run.state.model.stateDict();
  return Object.fromEntries(Object.entries(state).map(([name, tensor]) => [name, Array.from(tensor.data, Number)]));
};

export function makeFolder(): Promise<string> {
  return mkdtemp(join(tmpdir(), 'lockstep-checkpoint-'));
}

/** `runWorld` for ranks that wait for a disk, which may be busy with other things for longer than a stall takes. */
export function runOnDisk<R>(
  size: number,
  fn: (world: World) => R | Promise<R>,
  options?: RunWorldOptions,
): Promise<R[]> {
  return runWorld(size, fn, { stallMs: 60_000, ...options });
}
