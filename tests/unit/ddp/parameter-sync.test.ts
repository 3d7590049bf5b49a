/** Every rank starts from rank 0's parameters and buffers, or says why it cannot. */
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { Tensor } from '../../../src/tensor/tensor';
import { batchOf, flat, Mlp, runPortable } from './models';

/** The message of what `promise` rejects with. */
async function messageOf(promise: PromiseLike<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    return (error as Error).message;
  }
  return 'did not reject';
}

describe('parameters', () => {
  test('syncParameters makes every rank start from rank 0', async () => {
    const results = await runPortable(3, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(world.rank), world.group);
      await ddp.syncParameters();
      return flat(ddp.parameters());
    });
    for (const parameters of results) expect(parameters).toEqual(flat(new Mlp(0).parameters()));
  });

  test('the first forward does it if it was forgotten', async () => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Mlp(world.rank), world.group);
      await ddp.forward(batchOf(1, 2).x);
      return flat(ddp.parameters());
    });
    expect(results[1]).toEqual(flat(new Mlp(0).parameters()));
  });

  test.each<[string, (rank: number) => Module, string]>([
    [
      'another shape',
      (rank) => new Linear(4 + rank, 2),
      `'weight' [2, 5] float32 on rank 1, and 'weight' [2, 4] float32 on rank 0`,
    ],
    [
      'another number of parameters',
      (rank) => new Linear(4, 2, { bias: rank === 0 }),
      `parameter or buffer 1 is missing on rank 1, and 'bias' [2] float32 on rank 0`,
    ],
  ])('%s on one rank is named on all, and the group lives on', async (_name, build, expected) => {
    const messages = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(build(world.rank), world.group);
      const message = await messageOf(ddp.syncParameters());
      await world.barrier();
      return message;
    });
    for (const message of messages) expect(message).toContain(expected);
  });

  test('parameters registered in another order are named', async () => {
    class Pair extends Module {
      constructor(isSwapped: boolean) {
        super();
        const names = isSwapped ? ['b', 'a'] : ['a', 'b'];
        for (const name of names) Object.assign(this, { [name]: new Parameter(Tensor.zeros([2])) });
      }
      override forward(x: Tensor): Promise<Tensor> {
        return Promise.resolve(x);
      }
    }
    const messages = await runPortable(2, async (world) => {
      return messageOf(new DistributedDataParallel(new Pair(world.rank === 1), world.group).syncParameters());
    });
    expect(messages[0]).toContain(`'b' [2] float32 on rank 1, and 'a' [2] float32 on rank 0`);
  });

  test('options that differ between ranks are named', async () => {
    const messages = await runPortable(2, async (world) => {
      const options = { findUnusedParameters: world.rank === 1 };
      return messageOf(new DistributedDataParallel(new Mlp(), world.group, options).syncParameters());
    });
    expect(messages[0]).toContain('option findUnusedParameters is true on rank 1, and false on rank 0');
  });

  test('names, state and mode are those of the wrapped module', async () => {
    await runPortable(1, async (world) => {
      const model = new Mlp();
      const ddp = new DistributedDataParallel(model, world.group);
      const fc1: Linear = ddp.module.fc1; // the type is kept
      expect(fc1).toBe(model.fc1);
      expect(ddp.processGroup).toBe(world.group);
      expect(ddp.namedParameters().map(([name]) => name)).toEqual(['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']);
      expect(Object.keys(ddp.stateDict())).toEqual(Object.keys(model.stateDict()));
      ddp.eval();
      expect([ddp.isTraining, model.isTraining, model.fc1.isTraining]).toEqual([false, false, false]);
      ddp.train();
      expect([ddp.isTraining, model.fc1.isTraining]).toEqual([true, true]);
    });
  });
});

describe('buffers', () => {
  class Counting extends Module {
    readonly weight = new Parameter(Tensor.ones([1]));
    declare count: Tensor;
    constructor(start: number) {
      super();
      this.registerBuffer('count', Tensor.from([start]));
    }
    override forward(x: Tensor): Promise<Tensor> {
      return Promise.resolve(x.mul(this.weight).add(this.count));
    }
  }

  test.each([true, false])('broadcastBuffers %s', async (broadcastBuffers) => {
    const results = await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Counting(world.rank), world.group, { broadcastBuffers });
      await ddp.syncParameters();
      (ddp.module.count.data as Float32Array)[0] = 10 + world.rank;
      await (await ddp.forward(Tensor.from([1]))).sum().backward();
      await ddp.syncGradients();
      return ddp.module.count.item();
    });
    expect(results).toEqual(broadcastBuffers ? [10, 10] : [10, 11]);
  });

  test('one rank may evaluate alone: no communication in eval mode', async () => {
    await runPortable(2, async (world) => {
      const ddp = new DistributedDataParallel(new Counting(0), world.group);
      await ddp.syncParameters();
      ddp.eval();
      if (world.rank === 0) await ddp.forward(Tensor.from([1]));
    });
  });
});

test('two forwards before one backward are fine while the buffers keep their bits', async () => {
  class Scaled extends Module {
    readonly weight = new Parameter(Tensor.ones([1]));
    readonly scale = this.registerBuffer('scale', Tensor.from([3]));
    override forward(x: Tensor): Promise<Tensor> {
      return Promise.resolve(x.mul(this.weight).mul(this.scale));
    }
  }
  await runPortable(2, async (world) => {
    const ddp = new DistributedDataParallel(new Scaled(), world.group);
    const a = await ddp.forward(Tensor.from([1]));
    const b = await ddp.forward(Tensor.from([2]));
    await a.add(b).sum().backward();
    await ddp.syncGradients();
    expect(ddp.module.weight.grad?.item()).toBe(9);
  });
});

test('what is no module or no group is refused with what to pass', async () => {
  await runPortable(1, async (world) => {
    expect(() => new DistributedDataParallel({} as never, world.group)).toThrow(
      'expected a Module as the first argument',
    );
    expect(() => new DistributedDataParallel(new Mlp(), world as never)).toThrow('got a World. Pass world.group.');
    await Promise.resolve();
  });
});
