/**
 * What a user's strict project sees: package.test.ts compiles this file against the packed tarball, under several
 * versions of TypeScript, with the declaration files checked too.
 */
import {
  AdamW,
  BFloat16Buffer,
  CosineWithWarmup,
  DataLoader,
  DistributedDataParallel,
  DistributedSampler,
  Generator,
  Linear,
  MockBackend,
  Module,
  Parameter,
  ReduceOp,
  Sequential,
  Tensor,
  TensorDataset,
  type World,
  allReduceSum,
  clipGradNorm,
  crossEntropy,
  customFunction,
  isLockstepError,
  memory,
  noGrad,
  type Backend,
  type CommHook,
  type DataBuffer,
  type Work,
} from 'lockstep';
import { lockstepMatchers, runWorld, type Fault, type LockstepMatchers, type RunWorldOptions } from 'lockstep/testing';

class Scaled extends Module<[Tensor, number], Tensor> {
  readonly inner = new Sequential(new Linear(2, 2));
  readonly scale = new Parameter(Tensor.ones([1]));
  override async forward(x: Tensor, factor: number): Promise<Tensor> {
    return (await this.inner.forward(x)).mul(this.scale).mul(factor);
  }
}

const hook: CommHook = async (bucket, group) => {
  await group.allReduce(bucket.tensor, ReduceOp.Average);
};

async function train(world: World): Promise<number> {
  const ddp = new DistributedDataParallel(new Scaled(), world.group, { bucketCapMb: 1, logger: undefined });
  ddp.registerCommHook(hook);
  const optimizer = new AdamW(ddp.parameters(), { lr: 1e-3 });
  const scheduler = new CosineWithWarmup(optimizer, { warmupSteps: 1, totalSteps: 4 });
  const data = new TensorDataset([
    Tensor.rand([4, 2], { generator: new Generator(1) }),
    Tensor.from(new Int32Array(4)),
  ]);
  const sampler = new DistributedSampler(data.length, { worldSize: world.worldSize, rank: world.rank });
  for await (const [x, labels] of new DataLoader(data, { batchSize: 2, sampler })) {
    const loss = crossEntropy(await ddp.forward(x, 2), labels);
    await loss.backward();
    await ddp.syncGradients();
    await clipGradNorm(ddp.parameters(), 1);
    await optimizer.step();
    optimizer.zeroGrad();
    scheduler.step();
  }
  const total = Tensor.from([noGrad(() => 1)]);
  await allReduceSum(total, world.group);
  return total.item();
}

const twice = customFunction({
  forward: (x: Tensor) => x.mul(2),
  backward: (gradient: Tensor) => gradient.mul(2),
});

export async function main(): Promise<void> {
  const faults: Fault[] = [];
  const options: RunWorldOptions = { schedule: 'random', seed: 1, faults };
  const totals: number[] = await runWorld(2, train, options);
  const backend: Backend = MockBackend.single();
  const half: DataBuffer = BFloat16Buffer.from([1, 2]);
  const work: Work = backend.allReduce(half, ReduceOp.Sum);
  await work;
  const peak: number = memory.stats().peak.parameters;
  const matchers: keyof LockstepMatchers = 'toEqualBits';
  const error: unknown = undefined;
  if (isLockstepError(error, 'LOCKSTEP_CLOSED')) throw error;
  void [totals, peak, matchers, lockstepMatchers, twice];
  await backend.close();
}
