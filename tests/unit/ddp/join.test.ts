/** Uneven inputs: see [Note: join protocol]. */
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';
import { runPortable } from './models';

/** Its gradient is the input. */
class Weight extends Module {
  readonly weight = new Parameter(Tensor.zeros([1]));
  declare seen: Tensor;
  constructor() {
    super();
    this.registerBuffer('seen', Tensor.zeros([1]));
  }
  override forward(x: Tensor): Promise<Tensor> {
    return Promise.resolve(x.mul(this.weight));
  }
}

/** Rank 0 has three batches, rank 1 has one: the gradients that rank 0 sees, and both ranks' weights at the end. */
async function trainUnevenly(options: {
  divideByInitialWorldSize?: boolean;
}): Promise<{ gradients: number[][]; weights: number[] }> {
  const results = await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Weight(), world.group);
    const optimizer = new SGD(ddp.parameters(), { lr: 1 });
    const gradients: number[] = [];
    await ddp.join(async () => {
      for (let batch = 0; batch < (world.rank === 0 ? 3 : 1); batch++) {
        await (await ddp.forward(Tensor.from([world.rank === 0 ? 1 : 2]))).sum().backward();
        await ddp.syncGradients();
        gradients.push(ddp.module.weight.grad?.item() ?? NaN);
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }, options);
    return { gradients, weight: ddp.module.weight.item() };
  });
  return { gradients: results.map(({ gradients }) => gradients), weights: results.map(({ weight }) => weight) };
}

test('ranks without input count with zeros, and all end with the parameters of the last that trained', async () => {
  const { gradients, weights } = await trainUnevenly({});
  expect(gradients).toEqual([[1.5, 0.5, 0.5], [1.5]]);
  expect(weights).toEqual([-2.5, -2.5]);
});

test('divideByInitialWorldSize false averages over the ranks that still have input', async () => {
  const { gradients, weights } = await trainUnevenly({ divideByInitialWorldSize: false });
  expect(gradients).toEqual([[1.5, 1, 1], [1.5]]);
  expect(weights).toEqual([-3.5, -3.5]);
});

test('a rank without any batch takes part from the start', async () => {
  const weights = await runPortable(3, async (world) => {
    const ddp = new DistributedDataParallel(new Weight(), world.group);
    const optimizer = new SGD(ddp.parameters(), { lr: 1 });
    await ddp.join(async () => {
      for (let batch = 0; batch < world.rank; batch++) {
        await (await ddp.forward(Tensor.from([3]))).sum().backward();
        await ddp.syncGradients();
        await optimizer.step();
        optimizer.zeroGrad();
      }
    });
    return ddp.module.weight.item();
  });
  expect(weights).toEqual([-3, -3, -3]); // (3 + 3) / 3, then 3 / 3
});

test('accumulation in noSync works inside join', async () => {
  const weights = await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Weight(), world.group);
    const optimizer = new SGD(ddp.parameters(), { lr: 1 });
    await ddp.join(async () => {
      for (let batch = 0; batch <= world.rank; batch++) {
        await ddp.noSync(async () => (await ddp.forward(Tensor.from([1]))).sum().backward());
        await (await ddp.forward(Tensor.from([1]))).sum().backward();
        await ddp.syncGradients();
        await optimizer.step();
        optimizer.zeroGrad();
      }
    });
    return ddp.module.weight.item();
  });
  expect(weights).toEqual([-3, -3]);
});

test('throwOnEarlyTermination rejects on every rank and names those that ran out', async () => {
  const messages = await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Weight(), world.group);
    const joined = ddp.join(
      async () => {
        for (let batch = 0; batch < 1 + world.rank; batch++) {
          await (await ddp.forward(Tensor.from([1]))).sum().backward();
          await ddp.syncGradients();
          ddp.zeroGrad();
        }
      },
      { throwOnEarlyTermination: true },
    );
    return joined.then(
      () => 'did not reject',
      (error: unknown) => (error as Error).message,
    );
  });
  for (const message of messages) expect(message).toContain('join: rank 0 ran out of input before the others');
});

test('unknown options and a join inside a join are refused', async () => {
  await runPortable(1, async (world) => {
    const ddp = new DistributedDataParallel(new Weight(), world.group);
    await expect(ddp.join(() => undefined, { divide: true } as never)).rejects.toThrow("unknown key 'divide'");
    await expect(ddp.join(() => ddp.join(() => undefined))).rejects.toThrow('already inside a join of the same module');
  });
});
