import { checkpoint } from '../../../src/activation-checkpoint/activation-checkpoint';
import { autocast } from '../../../src/amp/autocast';
import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { defaultGenerator, manualSeed } from '../../../src/core/random';
import { Dropout } from '../../../src/nn/dropout';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import type { Parameter } from '../../../src/nn/parameter';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';

class Block extends Module {
  readonly fc1 = new Linear(6, 8, { generator: new Generator(1) });
  readonly dropout = new Dropout(0.5);
  readonly fc2 = new Linear(8, 6, { generator: new Generator(2) });
  calls = 0;

  async forward(x: Tensor): Promise<Tensor> {
    this.calls++;
    return this.fc2.forward(await this.dropout.forward((await this.fc1.forward(x)).tanh()));
  }
}

const data = (seed: number, requiresGrad = false): Tensor => {
  const tensor = Tensor.randn([4, 6], { generator: new Generator(seed) });
  tensor.requiresGrad = requiresGrad;
  return tensor;
};

function gradients(parameters: readonly (Tensor | Parameter)[]): unknown[] {
  return parameters.map((parameter) => parameter.grad?.toArray());
}

test('values, gradients and the random numbers that follow have the same bits as without', async () => {
  const results = [];
  for (const isCheckpointed of [false, true]) {
    manualSeed(7);
    const block = new Block();
    const x = data(3, true);
    const run = (h: Tensor): Promise<Tensor> => block.forward(h);
    const first = isCheckpointed ? await checkpoint(run, x) : await run(x);
    const second = isCheckpointed ? await checkpoint(run, first) : await run(first);
    const value = second.toArray();
    await second.pow(2).mean().backward();
    results.push({ value, gradients: gradients([x, ...block.parameters()]), next: defaultGenerator().nextUint32() });
    expect(block.calls).toBe(isCheckpointed ? 4 : 2);
  }
  expect(results[1]).toEqual(results[0]);
});

test('accumulated gradients of a parameter used inside, between and outside have the same bits too', async () => {
  const results = [];
  for (const isCheckpointed of [false, true]) {
    const w = data(1, true);
    const run = (h: Tensor): Tensor => h.mul(w).tanh();
    const apply = async (h: Tensor): Promise<Tensor> => (isCheckpointed ? checkpoint(run, h) : run(h));
    for (const seed of [5, 6, 7]) {
      const y = await apply((await apply(data(seed))).mul(w));
      await y.add(w).pow(2).sum().backward();
    }
    results.push(gradients([w]));
  }
  expect(results[1]).toEqual(results[0]);
});

test('parameters get their gradients where no input needs one', async () => {
  const block = new Block().eval();
  const plain = new Block().eval();
  await (await checkpoint((x: Tensor) => block.forward(x), data(3))).sum().backward();
  await (await plain.forward(data(3))).sum().backward();
  expect(gradients(block.parameters())).toEqual(gradients(plain.parameters()));
});

test('several inputs and outputs, in arrays and objects; one that is not used gives no gradient', async () => {
  const [a, b] = [data(1, true), data(2, true)];
  const run = ({ left, rest }: { left: Tensor; rest: Tensor[] }, factor: number): Record<string, Tensor> => ({
    product: left.mul(rest[0] as Tensor).mul(factor),
    sum: left.add(rest[0] as Tensor),
    ids: Tensor.from([1, 2], [2], { dtype: 'int32' }),
  });
  const { product, ids } = await checkpoint(run, { left: a, rest: [b] }, 3);
  expect(ids?.dtype).toBe('int32');
  await product?.sum().backward();
  expect(a.grad?.toArray()).toEqual(b.mul(3).toArray());
  expect(b.grad?.toArray()).toEqual(a.mul(3).toArray());
});

test('checkpoints nest', async () => {
  const results = [];
  for (const isCheckpointed of [false, true]) {
    manualSeed(9);
    const block = new Block();
    const x = data(4, true);
    const inner = (h: Tensor): Promise<Tensor> => block.forward(h);
    const outer = async (h: Tensor): Promise<Tensor> =>
      (isCheckpointed ? await checkpoint(inner, h.mul(2)) : await inner(h.mul(2))).tanh();
    const y = isCheckpointed ? await checkpoint(outer, x) : await outer(x);
    await y.sum().backward();
    results.push(gradients([x, ...block.parameters()]));
  }
  expect(results[1]).toEqual(results[0]);
});

test('a gradient hook runs once, after the last use, with the final gradient', async () => {
  const w = data(1, true);
  const seen: unknown[] = [];
  w.onGradientReady((leaf) => seen.push(leaf.grad?.toArray()));
  const run = (h: Tensor): Tensor => h.mul(w);
  await (await checkpoint(run, await checkpoint(run, data(2)))).add(w).sum().backward();
  expect(seen).toEqual([w.grad?.toArray()]);
});

test('numbers from a generator of its own are repeated as well', async () => {
  const results = [];
  for (const isCheckpointed of [false, true]) {
    const dropout = new Dropout(0.5, { generator: new Generator(11) });
    const x = data(3, true);
    const run = (h: Tensor): Promise<Tensor> => dropout.forward(h);
    const once = isCheckpointed ? await checkpoint(run, x) : await run(x);
    await (await dropout.forward(once)).sum().backward();
    results.push(gradients([x]));
  }
  expect(results[1]).toEqual(results[0]);
});

test('the second run casts as the first one did, though backward runs outside of autocast', async () => {
  const results = [];
  for (const isCheckpointed of [false, true]) {
    const block = new Block().eval();
    const run = (h: Tensor): Promise<Tensor> => block.forward(h);
    const y = await autocast({ dtype: 'bfloat16' }, () => (isCheckpointed ? checkpoint(run, data(3)) : run(data(3))));
    expect(y.dtype).toBe('bfloat16');
    await y.to('float32').sum().backward();
    results.push(gradients(block.parameters()));
  }
  expect(results[1]).toEqual(results[0]);
});

test('inside it only the outputs are held in the account until backward, and nothing afterwards', async () => {
  const w = data(1, true);
  const x = data(2, true);
  const before = memory.stats().live.activations;
  const deep = (h: Tensor): Tensor => Array.from({ length: 20 }).reduce<Tensor>((y) => y.mul(w).tanh(), h);
  const y = await checkpoint(deep, x);
  expect(memory.stats().live.activations - before).toBe(y.size * 4);
  await y.backward(Tensor.ones([4, 6]));
  y.dispose();
  expect(memory.stats().live.activations - before).toBeLessThanOrEqual(y.size * 4); // the seed that we made
});

test('inside noGrad it just runs the function', async () => {
  const block = new Block();
  const y = await noGrad(() => checkpoint((x: Tensor) => block.forward(x), data(1, true)));
  expect([block.calls, y.requiresGrad]).toEqual([1, false]);
});

test('a tensor of the closure that was computed from leaves is refused by name of what to do', async () => {
  const hidden = data(1, true).mul(2);
  await expect(checkpoint((x: Tensor) => x.add(hidden), data(2))).rejects.toThrow(
    /computed outside .* Pass it as an input.*arrays and plain objects/,
  );
});

test('a second run that gives another shape is an error that says both', async () => {
  const w = data(1, true);
  let rows = 4;
  const y = await checkpoint((x: Tensor) => x.mul(w).slice(0, 0, rows--), data(2));
  await expect(y.sum().backward()).rejects.toThrow(/gave float32 \[3, 6\] where it gave float32 \[4, 6\]/);
});

test('a parameter that was changed in place before backward is an error', async () => {
  const w = data(1, true);
  const y = await checkpoint((x: Tensor) => x.mul(w), data(2));
  w.storage.markChanged();
  await expect(y.sum().backward()).rejects.toThrow(/changed in place between forward and backward/);
});

test('a function that throws rejects, in forward and in backward, and the leaves are free again', async () => {
  const w = data(1, true);
  const boom = new Error('boom');
  await expect(checkpoint(async (_x: Tensor) => Promise.reject(boom), data(2))).rejects.toBe(boom);
  let runs = 0;
  const y = await checkpoint((x: Tensor) => {
    if (runs++ > 0) throw boom;
    return x.mul(w);
  }, data(2));
  await expect(y.sum().backward()).rejects.toBe(boom);
  await w.sum().backward();
  expect(w.grad?.toArray()).toEqual(Tensor.ones([4, 6]).toArray());
});
