import { memory } from '../../../src/core/memory-account';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';

const leaf = (values: number[]): Tensor => Tensor.from(values, undefined, { requiresGrad: true });

describe('gradients', () => {
  test('flow to every leaf that requires one, and to no other', async () => {
    const a = leaf([1, 2]);
    const b = Tensor.from([3, 4]);
    await a.mul(b).sum().backward();
    expect(a.grad?.toArray()).toEqual([3, 4]);
    expect(b.grad).toBeUndefined();
  });

  test('of several uses of a leaf are summed', async () => {
    const x = leaf([3]);
    await x.mul(x).add(x).backward();
    expect(x.grad?.toArray()).toEqual([7]);
  });

  test('of several uses of a result are summed before they go on', async () => {
    const x = leaf([3]);
    const y = x.mul(2);
    await y
      .add(y.mul(10))
      .add(y.mul(y.mul(100)).mul(0))
      .backward();
    expect(x.grad?.toArray()).toEqual([22]);
  });

  test('of several backwards are summed into the same gradient', async () => {
    const x = leaf([2]);
    await x.mul(3).backward();
    const first = x.grad;
    await x.mul(4).backward();
    expect(x.grad).toBe(first);
    expect(x.grad?.toArray()).toEqual([7]);
  });

  test('start from the gradient that is passed', async () => {
    const x = leaf([1, 2]);
    await x.mul(2).backward(Tensor.from([10, 100]));
    expect(x.grad?.toArray()).toEqual([20, 200]);
  });

  test('of a leaf itself are what is passed', async () => {
    const x = leaf([5]);
    await x.backward();
    expect(x.grad?.toArray()).toEqual([1]);
    const seed = Tensor.from([3]);
    await x.backward(seed);
    expect(x.grad?.toArray()).toEqual([4]);
    expect(seed.toArray()).toEqual([3]);
  });

  test('do not share memory between leaves', async () => {
    const a = leaf([1]);
    const b = leaf([1]);
    await a.add(b).backward();
    await a.mul(5).backward();
    expect(a.grad?.toArray()).toEqual([6]);
    expect(b.grad?.toArray()).toEqual([1]);
  });

  test('do not share memory with the gradient that was passed', async () => {
    const x = leaf([1, 2]);
    const seed = Tensor.from([1, 1]);
    await x.reshape([2]).backward(seed);
    await x.mul(2).sum().backward();
    expect(seed.toArray()).toEqual([1, 1]);
    expect(x.grad?.toArray()).toEqual([3, 3]);
  });

  test('do not share memory with a computed tensor that is passed after its own backward', async () => {
    const x = leaf([1]);
    const y = leaf([1]);
    const seed = y.mul(4);
    await seed.backward();
    await x.clone().backward(seed);
    await x.mul(1).backward();
    expect(seed.toArray()).toEqual([4]);
  });

  test('stop at detach and at noGrad', async () => {
    const x = leaf([2]);
    await x.mul(x.detach()).backward();
    expect(x.grad?.toArray()).toEqual([2]);
    expect(noGrad(() => x.mul(2)).requiresGrad).toBe(false);
  });

  test('stop at a leaf that is frozen', async () => {
    const x = leaf([2]);
    const y = leaf([3]);
    y.requiresGrad = false;
    await x.mul(y).backward();
    expect(y.grad).toBeUndefined();
  });

  test('reach both ends of a chain of 10,000 operators', async () => {
    const x = leaf([1]);
    let y = x;
    for (let i = 0; i < 10_000; i++) y = y.add(x);
    await y.backward();
    expect(x.grad?.toArray()).toEqual([10_001]);
  });

  test('are the same bits on every run, many branches or not', async () => {
    const run = async (): Promise<Tensor | undefined> => {
      const x = Tensor.from([0.1, 0.7, -0.3], undefined, { requiresGrad: true });
      const branches = Array.from({ length: 20 }, (_unused, i) => x.mul(0.3 * i).tanh());
      await branches
        .reduce((sum, branch) => sum.add(branch))
        .sum()
        .backward();
      return x.grad;
    };
    expect(await run()).toEqual(await run());
  });

  test('of NaN and infinity arrive as they are', async () => {
    const x = leaf([1, 2]);
    await x
      .mul(Tensor.from([NaN, Infinity]))
      .sum()
      .backward();
    expect(x.grad?.toArray()).toEqual([NaN, Infinity]);
  });

  test('of an empty tensor are empty', async () => {
    const x = Tensor.zeros([0, 3], { requiresGrad: true });
    await x.mul(2).sum().backward();
    expect(x.grad?.shape).toEqual([0, 3]);
  });
});

describe('backward() refuses', () => {
  test('a tensor that depends on nothing', async () => {
    await expect(Tensor.from([1]).backward()).rejects.toThrow(/does not depend on a tensor that requires a gradient/);
    await expect(noGrad(() => Tensor.from([1]).backward())).rejects.toThrow(/\(this is inside noGrad\)/);
  });

  test('more than one element without a gradient, and a gradient of another form', async () => {
    const y = leaf([1, 2]).mul(2);
    await expect(y.backward()).rejects.toThrow(/expected a tensor of one element, got shape \[2\]/);
    await expect(y.backward(Tensor.from([1]))).rejects.toThrow(/float32 \[2\], got float32 \[1\]/);
    await expect(y.backward(Tensor.from([1, 2], undefined, { dtype: 'float64' }))).rejects.toThrow(/got float64/);
  });

  test('a graph that was used before, also in part', async () => {
    const x = leaf([2]);
    const shared = x.mul(3);
    const first = shared.mul(1);
    const second = shared.mul(2);
    await first.backward();
    await expect(first.backward()).rejects.toThrow(/the graph was freed at 'mul' by an earlier backward\(\)/);
    await expect(second.backward()).rejects.toThrow(/add the losses and call backward\(\) once/);
    expect(x.grad?.toArray()).toEqual([3]);
  });

  test('a saved tensor that was changed in place', async () => {
    const x = leaf([2]);
    const y = x.mul(x);
    x.data[0] = 5;
    x.storage.markChanged();
    await expect(y.backward()).rejects.toThrow(/a tensor that 'mul' saved was changed in place since/);
    expect(x.grad).toBeUndefined();
  });
});

describe('the gradient buffer', () => {
  test('takes the first gradient, becomes .grad, and takes later ones in place', async () => {
    const flat = Tensor.zeros([4]);
    const x = leaf([1, 2]);
    const view = new Tensor({ storage: flat.storage.view(2, 2), shape: [2] });
    x.gradientBuffer = view;
    flat.data.fill(9 as never);
    await x.mul(3).sum().backward();
    expect(x.grad).toBe(view);
    expect(flat.toArray()).toEqual([9, 9, 3, 3]);
    await x.mul(1).sum().backward();
    expect(flat.toArray()).toEqual([9, 9, 4, 4]);
    x.grad = undefined;
    await x.mul(1).sum().backward();
    expect(flat.toArray()).toEqual([9, 9, 1, 1]);
  });

  test.each(['float16', 'bfloat16'] as const)(
    'from the second %s gradient on, the sum is float32 and counted as such',
    async (dtype) => {
      const x = Tensor.from(new Array<number>(8).fill(1), undefined, { dtype, requiresGrad: true });
      const before = memory.stats().live.gradients;
      await x.mul(2048).sum().backward();
      expect([x.grad?.dtype, memory.stats().live.gradients - before]).toEqual([dtype, 16]);
      await x.mul(1).sum().backward();
      expect([x.grad?.dtype, memory.stats().live.gradients - before]).toEqual(['float32', 32]);
      expect(x.grad?.toArray()).toEqual(new Array(8).fill(2049));
    },
  );

  test('may be wider than the leaf: 16-bit gradients are summed in float32', async () => {
    const x = Tensor.from([1], undefined, { dtype: 'bfloat16', requiresGrad: true });
    x.gradientBuffer = Tensor.zeros([1]);
    await x.mul(256).sum().backward();
    await x.mul(1).sum().backward();
    expect(x.grad?.dtype).toBe('float32');
    expect(x.grad?.toArray()).toEqual([257]); // bfloat16 would say 256
  });
});
