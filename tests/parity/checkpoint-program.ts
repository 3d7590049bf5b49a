/** A training that saves itself, or is loaded, for the checkpoint tests on processes. */
import { createHash } from 'node:crypto';
import { loadCheckpoint, saveCheckpoint, saveCheckpointAsync } from '../../src/checkpoint/checkpoint';
import { bytesOf } from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { mseLoss } from '../../src/nn/losses';
import { AdamW } from '../../src/optim/adam';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { withFullParameters } from '../../src/zero/full-parameters';
import { zeroWrap } from '../../src/zero/zero';
import type { ShardDevice, ZeroStage } from '../../src/zero/zero-options';
import { Mlp } from '../unit/checkpoint/training';

export interface CheckpointArgs {
  readonly folder: string;
  readonly stage: ZeroStage;
  /** Of the initial values. */
  readonly seed: number;
  /** Load this step; undefined: train two steps and save each, the second in the background. */
  readonly load: 1 | 2 | undefined;
  readonly shardDevice?: ShardDevice | undefined;
}

/** A digest of all parameters and of the optimizer's state, by step. */
export type CheckpointRun = Readonly<Record<number, string>>;

export async function trainWithCheckpoints(world: World, args: CheckpointArgs): Promise<CheckpointRun> {
  const { folder, stage, seed, load, shardDevice } = args;
  const { group } = world;
  const raw = new Mlp(seed);
  const options = { stage, shardDevice };
  const { module, optimizer } = await zeroWrap(raw, new AdamW(raw.parameters(), { lr: 0.05 }), group, options);
  const state = { model: module, optimizer };
  const digest = async (): Promise<string> => {
    const parameters = await withFullParameters(module, () => Object.values(module.stateDict()));
    const { state: buffers } = await optimizer.stateDict();
    const tensors = [...parameters, ...Object.values(buffers).flatMap((entry) => Object.values(entry))];
    const hash = createHash('sha256');
    for (const value of tensors) hash.update(value instanceof Tensor ? bytesOf(value.data) : String(value));
    return hash.digest('hex');
  };
  if (load !== undefined) {
    await loadCheckpoint(folder, state, group, { step: load });
    return { [load]: await digest() };
  }
  const step = async (): Promise<void> => {
    const x = Tensor.randn([4, 4], { generator: new Generator(group.rank) });
    await mseLoss(await module.forward(x), Tensor.ones([4, 2])).backward();
    await optimizer.step();
    optimizer.zeroGrad();
  };
  await step();
  const atOne = await digest();
  await saveCheckpoint(folder, { ...state, step: 1 }, group);
  await step();
  const atTwo = await digest();
  const pending = await saveCheckpointAsync(folder, { ...state, step: 2 }, group);
  await step(); // meanwhile
  await pending.done;
  return { 1: atOne, 2: atTwo };
}
