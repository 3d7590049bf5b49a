/** What DDP itself costs, and what it holds. */
import {
  DistributedDataParallel,
  Generator,
  Linear,
  ProcessGroup,
  ReLU,
  Sequential,
  Tensor,
  crossEntropy,
  memory,
  type DistributedDataParallelOptions,
} from 'lockstep';
import { describe, median, report, summarise, time } from './measure';

const BATCH = 64;
const WARM_UP = 3;
const ROUNDS = 31;

export async function benchDdp(): Promise<void> {
  await benchOverhead(false);
  await benchOverhead(true);
  await benchPeakMemory(false);
  await benchPeakMemory(true);
}

function buildModel(): Sequential {
  const generator = new Generator(1);
  return new Sequential(
    new Linear(784, 1024, { generator }),
    new ReLU(),
    new Linear(1024, 1024, { generator }),
    new ReLU(),
    new Linear(1024, 10, { generator }),
  );
}

function batch(): { input: Tensor; labels: Tensor } {
  const generator = new Generator(2);
  const labels = Int32Array.from({ length: BATCH }, () => generator.nextBelow(10));
  return { input: Tensor.randn([BATCH, 784], { generator }), labels: Tensor.from(labels) };
}

/** Backward and synchronisation with DDP against backward alone, in turn; forward is the same and is not timed. */
async function benchOverhead(gradientAsBucketView: boolean): Promise<void> {
  const { input, labels } = batch();
  const plain = buildModel();
  const ddp = new DistributedDataParallel(buildModel(), ProcessGroup.mock(), { gradientAsBucketView });
  const plainMs: number[] = [];
  const shares: number[] = [];
  for (let round = -WARM_UP; round < ROUNDS; round++) {
    const plainLoss = crossEntropy(await plain.forward(input), labels);
    const backwardMs = await time(() => plainLoss.backward());
    plain.zeroGrad();
    const loss = crossEntropy(await ddp.forward(input), labels);
    const ddpMs = await time(async () => {
      await loss.backward();
      await ddp.syncGradients();
    });
    ddp.zeroGrad();
    if (round < 0) continue;
    plainMs.push(backwardMs);
    shares.push(ddpMs / backwardMs - 1);
  }
  const backward = summarise(plainMs);
  report(
    `DDP's own work to backward, MLP 784-1024-1024-10, bucket view ${gradientAsBucketView ? 'on' : 'off'}`,
    `${(100 * median(shares)).toFixed(1)} % of ${describe(backward)}`,
    'under 10 %',
  );
}

async function benchPeakMemory(gradientAsBucketView: boolean): Promise<void> {
  const { input, labels } = batch();
  const options: DistributedDataParallelOptions = { gradientAsBucketView };
  const model = buildModel();
  const ddp = new DistributedDataParallel(model, ProcessGroup.mock(), options);
  const modelBytes = [...ddp.parameters()].reduce((total, parameter) => total + 4 * parameter.size, 0);
  const before = memory.stats().live;
  memory.resetPeak();
  for (let step = 0; step < 3; step++) {
    await crossEntropy(await ddp.forward(input), labels).backward();
    await ddp.syncGradients();
    ddp.zeroGrad();
  }
  const { peak } = memory.stats();
  // the view's buckets are counted as gradients and exist from the start
  const gradients = peak.gradients - (gradientAsBucketView ? before.gradients - modelBytes : before.gradients);
  const communication = peak.communication - before.communication + (gradientAsBucketView ? 0 : modelBytes);
  report(
    `peak of one DDP step in models, bucket view ${gradientAsBucketView ? 'on' : 'off'}`,
    `gradients ${(gradients / modelBytes).toFixed(3)}, buckets ${(communication / modelBytes).toFixed(3)}`,
    gradientAsBucketView ? 'gradients 1, buckets 0' : 'gradients 1, buckets 1',
  );
}
