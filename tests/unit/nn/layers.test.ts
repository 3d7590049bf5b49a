import { Generator } from '../../../src/core/generator';
import { manualSeed } from '../../../src/core/random';
import { GELU, ReLU, Sigmoid, SiLU, Softmax, Tanh } from '../../../src/nn/activations';
import { Conv2d } from '../../../src/nn/conv2d';
import { Dropout } from '../../../src/nn/dropout';
import { Embedding } from '../../../src/nn/embedding';
import { Flatten } from '../../../src/nn/flatten';
import { Linear } from '../../../src/nn/linear';
import { crossEntropy, mseLoss } from '../../../src/nn/losses';
import type { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { MultiHeadAttention } from '../../../src/nn/multi-head-attention';
import { LayerNorm, RMSNorm } from '../../../src/nn/normalization';
import { Sequential } from '../../../src/nn/sequential';
import { TransformerBlock } from '../../../src/nn/transformer-block';
import { Tensor } from '../../../src/tensor/tensor';

const generator = () => new Generator(1);
const numbersOf = ({ data }: Tensor): number[] => Array.from(data, Number);
const namesOf = (module: Module) => module.namedParameters().map(([name]) => name);

describe('first values', () => {
  test('those of Linear and Conv2d fill -1/sqrt(fan in) to 1/sqrt(fan in) evenly', () => {
    for (const [layer, fanIn] of [
      [new Linear(400, 50, { generator: generator() }), 400],
      [new Conv2d(16, 50, 5, { generator: generator() }), 400],
    ] as const) {
      const values = numbersOf(layer.weight);
      const bound = 1 / Math.sqrt(fanIn);
      expect(Math.max(...values.map(Math.abs))).toBeLessThanOrEqual(bound);
      expect(Math.max(...values)).toBeGreaterThan(0.999 * bound);
      const variance = values.reduce((sum, value) => sum + value * value, 0) / values.length;
      expect(variance / (bound * bound)).toBeCloseTo(1 / 3, 2);
      expect(Math.max(...numbersOf(layer.bias as Tensor).map(Math.abs))).toBeLessThanOrEqual(bound);
    }
  });

  test('those of an Embedding are normally distributed', () => {
    const values = numbersOf(new Embedding(100, 50, { generator: generator() }).weight);
    expect(values.reduce((sum, value) => sum + value, 0) / values.length).toBeCloseTo(0, 1);
    expect(values.reduce((sum, value) => sum + value * value, 0) / values.length).toBeCloseTo(1, 1);
  });

  test('repeat with the seed, of a generator and of the context', () => {
    const make = [
      (options?: { generator: Generator }) => new Linear(3, 4, options),
      (options?: { generator: Generator }) => new Conv2d(1, 2, 3, options),
      (options?: { generator: Generator }) => new Embedding(3, 2, options),
      (options?: { generator: Generator }) => new TransformerBlock(4, 2, options),
    ];
    for (const build of make) {
      const seeded = () => build({ generator: generator() }).stateDict();
      expect(seeded()).toEqual(seeded());
      manualSeed(5);
      const first = build().stateDict();
      const second = build().stateDict();
      manualSeed(5);
      expect(build().stateDict()).toEqual(first);
      expect(second).not.toEqual(first);
    }
  });
});

describe('Dropout', () => {
  const x = Tensor.ones([4000]);

  test('drops a part p and scales the rest, with the mask in backward too', async () => {
    const input = Tensor.ones([4000], { requiresGrad: true });
    const y = await new Dropout(0.25, { generator: generator() }).forward(input);
    const kept = numbersOf(y).filter((value) => value !== 0);
    expect(kept.length / 4000).toBeCloseTo(0.75, 1);
    expect(new Set(kept)).toEqual(new Set([Math.fround(1 / 0.75)]));
    await y.sum().backward();
    expect(input.grad?.data).toEqual(y.data);
  });

  test('takes new numbers at each call, from the generator of the context unless it has its own', async () => {
    const dropout = new Dropout();
    manualSeed(3);
    const [a, b] = [await dropout.forward(x), await dropout.forward(x)];
    expect(a).not.toEqual(b);
    manualSeed(3);
    expect(await dropout.forward(x)).toEqual(a);
    const own = new Dropout(0.5, { generator: generator() });
    expect(await own.forward(x)).toEqual(await new Dropout(0.5, { generator: generator() }).forward(x));
  });

  test('changes nothing in evaluation, and all at p = 1', async () => {
    expect(await new Dropout(0.9).eval().forward(x)).toBe(x);
    expect(await new Dropout(0).forward(x)).toBe(x);
    expect(numbersOf(await new Dropout(1).forward(x)).every((value) => value === 0)).toBe(true);
  });
});

describe('activations and Flatten', () => {
  const x = Tensor.from([[-2, -0.5, 0, 3]]);

  test.each<[string, Module, Tensor]>([
    ['ReLU', new ReLU(), x.relu()],
    ['GELU', new GELU(), x.gelu('none')],
    ['exact GELU', new GELU('exact'), x.gelu('none')],
    ['tanh GELU', new GELU('tanh'), x.gelu('tanh')],
    ['SiLU', new SiLU(), x.silu()],
    ['Tanh', new Tanh(), x.tanh()],
    ['Sigmoid', new Sigmoid(), x.sigmoid()],
    ['Softmax', new Softmax(), x.softmax(-1)],
    ['Softmax along 0', new Softmax(0), x.softmax(0)],
    ['Flatten', new Flatten(0), x.reshape([4])],
  ])('%s', async (_name, module, expected) => {
    expect(await module.forward(x)).toEqual(expected);
    expect(module.parameters()).toEqual([]);
  });

  test('Flatten keeps the batch, also an empty one', async () => {
    expect((await new Flatten().forward(Tensor.zeros([2, 3, 4]))).shape).toEqual([2, 12]);
    expect((await new Flatten().forward(Tensor.zeros([0, 3, 4]))).shape).toEqual([0, 12]);
    expect((await new Flatten(2).forward(Tensor.zeros([2, 3, 4, 5]))).shape).toEqual([2, 3, 20]);
  });
});

describe('Sequential', () => {
  test('is a list of modules with the names of PyTorch', () => {
    const [a, b] = [new Linear(2, 2), new ReLU()];
    const model = new Sequential(a, b);
    expect([model.length, model[0], model[1], [...model]]).toEqual([2, a, b, [a, b]]);
    expect(namesOf(model)).toEqual(['0.weight', '0.bias']);
  });

  test('passes the output of one to the next; an empty one passes its input', async () => {
    const model = new Sequential(new ReLU(), new Tanh());
    const x = Tensor.from([-1, 2]);
    expect(await model.forward(x)).toEqual(x.relu().tanh());
    expect(await new Sequential().forward(x)).toBe(x);
  });

  test('refuses what is no module', () => {
    expect(() => new Sequential(new ReLU(), (() => 1) as never)).toThrow('expected a Module at index 1, got function');
  });
});

describe('attention', () => {
  test('names its parameters as DESIGN has them', () => {
    const layers = ['norm1', 'attn.q', 'attn.k', 'attn.v', 'attn.proj', 'norm2', 'fc1', 'fc2'];
    expect(namesOf(new TransformerBlock(4, 2))).toEqual(layers.flatMap((name) => [`${name}.weight`, `${name}.bias`]));
    expect(namesOf(new MultiHeadAttention(4, 2, { bias: false }))).toEqual(
      ['q', 'k', 'v', 'proj'].map((name) => `${name}.weight`),
    );
  });

  test('a causal one does not look ahead; another does', async () => {
    const early = async (causal: boolean, last: number) => {
      const block = new TransformerBlock(4, 2, { causal, generator: generator() });
      const x = Tensor.from(
        Float32Array.from({ length: 12 }, (_, i) => (i < 8 ? Math.sin(i) : last * i)),
        [1, 3, 4],
      );
      return (await block.forward(x)).slice(1, 0, 2);
    };
    expect(await early(true, 1)).toEqual(await early(true, 2));
    expect(await early(false, 1)).not.toEqual(await early(false, 2));
  });

  test('works in bfloat16 with a causal mask', async () => {
    const block = new TransformerBlock(4, 2, { causal: true });
    const x = Tensor.randn([1, 3, 4], { generator: generator(), dtype: 'bfloat16' });
    for (const module of block.modules()) {
      for (const [key, value] of Object.entries(module)) {
        if (value instanceof Parameter) Object.assign(module, { [key]: new Parameter(value.detach().to('bfloat16')) });
      }
    }
    const y = await block.forward(x);
    expect(y.dtype).toBe('bfloat16');
    expect(y.to('float32').toArray()).not.toContain(NaN);
  });
});

describe('losses', () => {
  const logits = Tensor.from([
    [1, 2, 0],
    [0, 0, 0],
  ]);
  const target = Tensor.from([1, 2], undefined, { dtype: 'int32' });

  test('reduction none keeps one loss a target', () => {
    const losses = crossEntropy(logits, target, { reduction: 'none' });
    expect(losses.shape).toEqual([2]);
    expect(losses.data[1]).toBeCloseTo(Math.log(3), 6);
    expect(mseLoss(logits, logits.mul(2), { reduction: 'none' }).toArray()).toEqual([
      [1, 4, 0],
      [0, 0, 0],
    ]);
  });

  test('with label smoothing 1 every class counts alike, and the gradient is the difference to that', async () => {
    const x = Tensor.from(logits.data, logits.shape, { requiresGrad: true });
    await crossEntropy(x, target, { labelSmoothing: 1, reduction: 'sum' }).backward();
    const probabilities = logits.softmax(-1).data;
    numbersOf(x.grad as Tensor).forEach((slope, i) => expect(slope).toBeCloseTo(Number(probabilities[i]) - 1 / 3, 6));
  });

  test('int64 classes are as good as int32', () => {
    expect(crossEntropy(logits, target.to('int64'))).toEqual(crossEntropy(logits, target));
  });

  test.each([
    [() => crossEntropy(logits, Tensor.from([1, 2])), 'expected int32 or int64 indices, got float32'],
    [
      () => crossEntropy(logits, Tensor.from([1, 3], [2], { dtype: 'int32' })),
      'index 3 (at position 1) is outside 0 to 2',
    ],
    [() => crossEntropy(logits, Tensor.zeros([3], { dtype: 'int32' })), 'got [2, 3] and [3]'],
    [() => crossEntropy(logits, target, { labelSmoothing: 2 }), 'options.labelSmoothing'],
    [() => mseLoss(logits, Tensor.zeros([2, 1])), 'expected two tensors of one shape, got [2, 3] and [2, 1]'],
    [() => mseLoss(logits, logits, { reduce: 'sum' } as never), "unknown key 'reduce'"],
  ])('a wrong argument is named (%#)', (make, message) => {
    expect(make).toThrow(message);
  });
});

describe('a wrong argument of a layer is named', () => {
  test.each([
    [() => new Linear(0, 2), 'new Linear: inFeatures: expected a whole number above 0, got 0'],
    [() => new Linear(2, 1.5), 'new Linear: outFeatures: expected a whole number above 0, got 1.5'],
    [() => new Linear(2, 2, { biass: false } as never), "unknown key 'biass'. Known options: bias, generator"],
    [() => new Linear(2, 2, { generator: Math.random as never }), 'options.generator'],
    [() => new Conv2d(1, 1, 0), 'new Conv2d: kernelSize: expected a whole number above 0, got 0'],
    [() => new Conv2d(1, 1, 3, { stride: 0 }), 'options.stride'],
    [() => new Conv2d(1, 1, 3, { padding: [1, -1] }), 'options.padding'],
    [() => new Embedding(-1, 2), 'new Embedding: numEmbeddings'],
    [() => new LayerNorm([]), 'new LayerNorm: expected at least one size, got []'],
    [() => new RMSNorm(2, { eps: -1 }), 'options.eps'],
    [() => new Dropout(1.5), 'new Dropout: expected a probability from 0 to 1, got 1.5'],
    [() => new GELU('erf' as never), "new GELU: expected 'none' (exact) or 'tanh', got erf"],
    [() => new MultiHeadAttention(6, 4), 'dim (6) must be a multiple of numHeads (4)'],
    [() => new TransformerBlock(4, 2, { gelu: 'erf' as never }), 'options.gelu'],
  ])('when it is built (%#)', (make, message) => {
    expect(make).toThrow(message);
  });

  test.each([
    [() => new Linear(2, 3).forward(Tensor.zeros([4, 3])), 'linear: expected x [..., in]'],
    [() => new LayerNorm(4).forward(Tensor.zeros([2, 3])), 'expected the last dimensions to be [4], got shape [2, 3]'],
    [() => new Embedding(3, 2).forward(Tensor.from([0.5])), 'expected int32 or int64 indices, got float32'],
    [
      () => new Embedding(3, 2).forward(Tensor.from([3], [1], { dtype: 'int32' })),
      'index 3 (at position 0) is outside 0 to 2',
    ],
    [() => new MultiHeadAttention(4, 2).forward(Tensor.zeros([3, 4])), 'shape [batch, tokens, dim], got [3, 4]'],
  ])('when it runs (%#)', async (run, message) => {
    await expect(run()).rejects.toThrow(message);
  });
});
