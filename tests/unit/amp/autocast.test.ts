import { autocast } from '../../../src/amp/autocast';
import { checkpoint } from '../../../src/activation-checkpoint/activation-checkpoint';
import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { LayerNorm } from '../../../src/nn/normalization';
import { Linear } from '../../../src/nn/linear';
import { crossEntropy, mseLoss } from '../../../src/nn/losses';
import { MultiHeadAttention } from '../../../src/nn/multi-head-attention';
import { TransformerBlock } from '../../../src/nn/transformer-block';
import { customFunction } from '../../../src/tensor/custom-function';
import { concat, conv2d, embedding, linear, rmsNorm, stack, where } from '../../../src/tensor/functional';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';

const random = (shape: readonly number[], dtype: 'float32' | 'float64' | 'bfloat16' | 'float16' = 'float32') =>
  Tensor.randn(shape, { generator: new Generator(3) }).to(dtype);

const [wide, low] = [random([4, 4]), random([4, 4], 'bfloat16')];

describe.each(['bfloat16', 'float16'] as const)('autocast to %s', (dtype) => {
  const on = <T>(fn: () => T) => autocast({ dtype }, fn);

  test.each<[string, () => Tensor]>([
    ['matmul', () => wide.matmul(wide)],
    ['matmul of the other dtype', () => wide.matmul(random([4, 4], 'float16'))],
    ['linear', () => linear(wide, wide, random([4]))],
    ['conv2d', () => conv2d(random([1, 1, 3, 3]), random([1, 1, 2, 2]))],
  ])('%s computes in it', (_name, run) => {
    expect(on(run).dtype).toBe(dtype);
  });

  test.each<[string, (x: Tensor) => Tensor]>([
    ['softmax', (x) => x.softmax(-1)],
    ['logSoftmax', (x) => x.logSoftmax(-1)],
    ['rmsNorm', (x) => rmsNorm(x, [4])],
    ['exp', (x) => x.exp()],
    ['log', (x) => x.abs().log()],
    ['pow', (x) => x.pow(2)],
    ['sum', (x) => x.sum()],
    ['mean', (x) => x.mean(0)],
    ['crossEntropy', (x) => crossEntropy(x, Tensor.from(new Int32Array(4)))],
    ['mseLoss', (x) => mseLoss(x, wide)],
  ])('%s computes in float32, from exactly what comes in', (_name, run) => {
    const input = wide.to(dtype);
    expect(on(() => run(input)).dtype).toBe('float32');
    expect(on(() => run(input)).toArray()).toEqual(run(input.to('float32')).toArray());
  });

  test.each<[string, (x: Tensor) => Tensor]>([
    ['relu', (x) => x.relu()],
    ['gelu', (x) => x.gelu()],
    ['max', (x) => x.max()],
    ['transpose', (x) => x.transpose(0, 1)],
    ['mul by a number', (x) => x.mul(2)],
  ])('%s keeps the dtype that it is given', (_name, run) => {
    expect(on(() => run(wide)).dtype).toBe('float32');
    expect(on(() => run(low)).dtype).toBe('bfloat16');
  });

  test.each<[string, (a: Tensor, b: Tensor) => Tensor]>([
    ['add', (a, b) => a.add(b)],
    ['mul', (a, b) => a.mul(b)],
    ['div', (a, b) => a.div(b)],
    ['concat', (a, b) => concat([a, b])],
    ['stack', (a, b) => stack([a, b])],
    ['where', (a, b) => where(a.gt(b), a, b)],
  ])('%s takes the widest dtype', (_name, run) => {
    expect(on(() => run(wide, low)).dtype).toBe('float32');
    expect(on(() => run(low, wide)).dtype).toBe('float32');
    expect(on(() => run(low, low)).dtype).toBe('bfloat16');
    expect(on(() => run(low, random([4, 4], 'float16'))).dtype).toBe('float32');
    expect(on(() => run(wide, random([4, 4], 'float64'))).dtype).toBe('float64');
  });

  test('float64 is left alone, and integers are still refused beside floats', () => {
    const double = random([4, 4], 'float64');
    expect(on(() => double.matmul(double).softmax(-1).sum()).dtype).toBe('float64');
    expect(() => on(() => wide.add(Tensor.from(new Int32Array(16), [4, 4])))).toThrow('differ');
    expect(on(() => Tensor.from(new Int32Array(3)).sum()).dtype).toBe('int64');
  });

  test('modules give the low dtype after products and float32 after norms', async () => {
    const x = random([2, 3, 4]);
    const dtypes = await on(async () => [
      (await new Linear(4, 5).forward(x)).dtype,
      (await new LayerNorm(4).forward(x)).dtype,
      (await new MultiHeadAttention(4, 2, { causal: true }).forward(x)).dtype,
      (await new TransformerBlock(4, 2).forward(x)).dtype,
      embedding(Tensor.from(new Int32Array(2)), wide).dtype,
    ]);
    expect(dtypes).toEqual([dtype, 'float32', dtype, 'float32', 'float32']);
  });

  test('the value is that of the same computation with casts written out', () => {
    const got = on(() => wide.matmul(wide).softmax(-1));
    const want = wide.to(dtype).matmul(wide.to(dtype)).to('float32').softmax(-1);
    expect(got.toArray()).toEqual(want.toArray());
  });

  test('gradients come back in the dtype of the parameter, with the bits of the casts written out', async () => {
    const [layer, twin] = [1, 1].map((seed) => new Linear(4, 3, { generator: new Generator(seed) })) as [
      Linear,
      Linear,
    ];
    const target = Tensor.from(Int32Array.of(0, 1, 2, 1));
    await (await on(async () => crossEntropy(await layer.forward(wide), target))).backward();
    const casts = linear(wide.to(dtype), twin.weight.to(dtype), twin.bias?.to(dtype));
    await crossEntropy(casts.to('float32'), target).backward();
    expect(layer.weight.grad?.dtype).toBe('float32');
    expect(layer.weight.grad?.toArray()).toEqual(twin.weight.grad?.toArray());
    expect(layer.bias?.grad?.toArray()).toEqual(twin.bias?.grad?.toArray());
  });
});

describe('where autocast is on', () => {
  test('until fn has returned, or its promise has settled, and not outside', async () => {
    const dtype = () => wide.matmul(wide).dtype;
    const later = autocast({}, async () => {
      await Promise.resolve();
      return dtype();
    });
    expect(dtype()).toBe('float32');
    expect(await later).toBe('bfloat16');
    expect(autocast({ dtype: 'float16' }, () => autocast({ enabled: false }, dtype))).toBe('float32');
    expect(autocast({ dtype: 'float16' }, () => [autocast({ dtype: 'bfloat16' }, dtype), dtype()])).toEqual([
      'bfloat16',
      'float16',
    ]);
  });

  test('tasks that interleave do not see each other', async () => {
    const run = async (dtype: 'bfloat16' | 'float16') =>
      autocast({ dtype }, async () => {
        const seen = new Set<string>();
        for (let i = 0; i < 5; i++) {
          seen.add(wide.matmul(wide).dtype);
          await Promise.resolve();
        }
        return [...seen];
      });
    expect(await Promise.all([run('bfloat16'), run('float16')])).toEqual([['bfloat16'], ['float16']]);
  });

  test('noGrad inside, and autocast inside noGrad', () => {
    expect(noGrad(() => autocast({}, () => wide.matmul(wide))).dtype).toBe('bfloat16');
    expect(autocast({}, () => noGrad(() => wide.matmul(wide))).dtype).toBe('bfloat16');
  });

  test('backward runs in the dtypes of the forward, wherever it is called', async () => {
    const gradientOf = async (backward: (loss: Tensor) => Promise<void>) => {
      const x = random([4, 4]);
      x.requiresGrad = true;
      await backward(x.exp().sum());
      return x.grad?.toArray();
    };
    const inside = await gradientOf((loss) => autocast({ dtype: 'float16' }, () => loss.backward()));
    expect(inside).toEqual(await gradientOf((loss) => loss.backward()));
  });

  test("a customFunction's backward runs as its forward did, and its gradients have the dtypes of the inputs", async () => {
    const seen: string[] = [];
    const square = customFunction(() => {
      let input: Tensor;
      return {
        forward: (x: Tensor) => (input = x).matmul(x),
        backward: (gradient) => {
          const product = gradient.matmul(input.transpose(0, 1));
          seen.push(product.dtype);
          return product.add(input.transpose(0, 1).matmul(gradient));
        },
      };
    });
    const x = random([4, 4]);
    x.requiresGrad = true;
    await autocast({}, () => square(x).sum()).backward();
    expect(seen).toEqual(['bfloat16']);
    expect(x.grad?.dtype).toBe('float32');
  });

  test('the recompute of a checkpoint runs as its forward did', async () => {
    const gradients = await Promise.all(
      [true, false].map(async (isCheckpointed) => {
        const layer = new Linear(4, 4, { generator: new Generator(1) });
        const run = (x: Tensor) => layer.forward(x);
        const loss = await autocast({}, async () => {
          return (await (isCheckpointed ? checkpoint(run, wide) : run(wide))).sum();
        });
        await loss.backward();
        return layer.weight.grad?.toArray();
      }),
    );
    expect(gradients[0]).toEqual(gradients[1]);
  });
});

test('another dtype is named', () => {
  const call = (options: object) => () => autocast(options as never, () => 0);
  expect(call({ dtype: 'float8' })).toThrow("autocast: options.dtype: expected 'bfloat16' or 'float16', got 'float8'");
  expect(call({ dtype: 'float32' })).toThrow("got 'float32'");
  expect(() => autocast({}, undefined as never)).toThrow('expected a function');
});

test('what is cast for an operator, and not needed by backward, is given back with it', async () => {
  const model = new Linear(4, 4);
  const x = random([256, 4]);
  const activations = async (run: () => Promise<Tensor>): Promise<number> => {
    const before = memory.stats().live.activations;
    const output = await autocast({ dtype: 'bfloat16' }, run);
    const held = memory.stats().live.activations - before;
    output.dispose();
    return held;
  };
  expect(await activations(() => noGrad(() => model.forward(x)))).toBe(2 * 256 * 4);
  // with a graph: the output, and the casts of input and weight, which backward reads
  expect(await activations(() => model.forward(x))).toBe(2 * (256 * 4 + 256 * 4 + 16) + 2 * 4);
});
