/** Gradients against central differences, in float64, on random shapes. */
import fc from 'fast-check';
import { Generator } from '../../../src/core/generator';
import {
  concat,
  conv2d,
  crossEntropyLoss,
  embedding,
  indexSelect,
  layerNorm,
  linear,
  rmsNorm,
  stack,
  where,
} from '../../../src/tensor/functional';
import { Tensor } from '../../../src/tensor/tensor';
import { holdsAsync } from '../../helpers/property';

type Loss = (...inputs: Tensor[]) => Tensor;

const STEP = 1e-5;
const TOLERANCE = 2e-5;

/** Compare the gradient of a weighted sum of the result with differences, for each element of each input. */
async function checkGradients(operator: Loss, shapes: readonly (readonly number[])[], seed: number): Promise<void> {
  const generator = new Generator(seed);
  const inputs = shapes.map((shape) => Tensor.randn(shape, { generator, dtype: 'float64', requiresGrad: true }));
  const weights = Tensor.randn(operator(...inputs).shape, { generator, dtype: 'float64' });
  const loss: Loss = (...values) =>
    operator(...values)
      .mul(weights)
      .sum();
  await loss(...inputs).backward();
  inputs.forEach((input, which) => {
    const data = input.data as Float64Array;
    for (let i = 0; i < data.length; i++) {
      const value = data[i] as number;
      const at = (x: number): number => {
        data[i] = x;
        return loss(...inputs).item();
      };
      const slope = (at(value + STEP) - at(value - STEP)) / (2 * STEP);
      data[i] = value;
      const got = Number(input.grad?.data[i]);
      if (Math.abs(got - slope) > TOLERANCE * (1 + Math.abs(slope))) {
        throw new Error(`input ${which}, element ${i} of [${input.shape.join(', ')}]: gradient ${got}, slope ${slope}`);
      }
    }
  });
}

const extent = fc.integer({ min: 1, max: 4 });
const shape = fc.array(extent, { maxLength: 3 });
const seed = fc.integer({ min: 0, max: 1e6 });
const runs = { short: 15, long: 300 };

/** Two shapes that broadcast. */
const broadcastable = fc
  .tuple(fc.array(fc.tuple(extent, fc.boolean(), fc.boolean()), { maxLength: 3 }), fc.nat(3), fc.nat(3))
  .map(([dims, cutA, cutB]): readonly [number[], number[]] => [
    dims.map(([size, isOne]) => (isOne ? 1 : size)).slice(Math.min(cutA, dims.length)),
    dims.map(([size, , isOne]) => (isOne ? 1 : size)).slice(Math.min(cutB, dims.length)),
  ]);

const binary: Readonly<Record<string, Loss>> = {
  add: (a, b) => a.add(b),
  sub: (a, b) => a.sub(b),
  mul: (a, b) => a.mul(b),
  div: (a, b) => a.div(b.exp()),
  pow: (a, b) => a.exp().pow(b),
  where: (a, b) => where(a.detach().gt(b.detach()), a, b),
};

test.each(Object.entries(binary))('%s, with broadcasting', async (name, operator) => {
  await holdsAsync(
    `gradient of ${name}`,
    fc.asyncProperty(broadcastable, seed, ([a, b], s) => checkGradients(operator, [a, b], s)),
    runs,
  );
});

const unary: Readonly<Record<string, (x: Tensor) => Tensor>> = {
  neg: (x) => x.neg(),
  exp: (x) => x.exp(),
  log: (x) => x.mul(x).add(1).log(),
  sqrt: (x) => x.mul(x).add(1).sqrt(),
  abs: (x) => x.abs(),
  tanh: (x) => x.tanh(),
  sigmoid: (x) => x.sigmoid(),
  relu: (x) => x.relu(),
  gelu: (x) => x.gelu(),
  geluTanh: (x) => x.gelu('tanh'),
  silu: (x) => x.silu(),
  'pow 2': (x) => x.pow(2),
  'pow 3': (x) => x.pow(3),
  'pow 0': (x) => x.pow(0),
  'number - x': (x) => x.neg().add(2).div(3),
};

test.each(Object.entries(unary))('%s', async (name, operator) => {
  await holdsAsync(
    `gradient of ${name}`,
    fc.asyncProperty(shape, seed, (s, from) => checkGradients((x) => operator(x), [s], from)),
    runs,
  );
});

const withDim = fc
  .array(extent, { minLength: 1, maxLength: 3 })
  .chain((s) => fc.tuple(fc.constant(s), fc.integer({ min: -s.length, max: s.length - 1 }), fc.boolean()));

const alongDim: Readonly<Record<string, (x: Tensor, dim: number, keepDim: boolean) => Tensor>> = {
  sum: (x, dim, keepDim) => x.sum(dim, keepDim),
  mean: (x, dim, keepDim) => x.mean(dim, keepDim),
  max: (x, dim, keepDim) => x.max(dim, keepDim),
  min: (x, dim, keepDim) => x.min(dim, keepDim),
  softmax: (x, dim) => x.softmax(dim),
  logSoftmax: (x, dim) => x.logSoftmax(dim),
  slice: (x, dim) => x.slice(dim, 0, Math.ceil((x.shape.at(dim) as number) / 2)),
  transpose: (x, dim) => x.transpose(dim, 0),
  unsqueeze: (x, dim) => x.unsqueeze(dim),
  concat: (x, dim) => concat([x, x.mul(2), x.slice(dim, 0, 1)], dim),
  stack: (x, dim) => stack([x, x.exp()], dim),
  indexSelect: (x, dim) => indexSelect(x, dim, Tensor.from(Int32Array.of(0, (x.shape.at(dim) as number) - 1, 0))),
};

test.each(Object.entries(alongDim))('%s along any dimension', async (name, operator) => {
  await holdsAsync(
    `gradient of ${name}`,
    fc.asyncProperty(withDim, seed, ([s, dim, keepDim], from) =>
      checkGradients((x) => operator(x, dim, keepDim), [s], from),
    ),
    runs,
  );
});

test('matmul of vectors, matrices and batches', async () => {
  const shapes = fc.tuple(
    extent,
    extent,
    extent,
    extent,
    fc.constantFrom('mm', 'vm', 'mv', 'vv', 'bm', 'mb', 'bb', 'b1'),
  );
  await holdsAsync(
    'gradient of matmul',
    fc.asyncProperty(shapes, seed, ([n, k, m, batch, kind], from) => {
      const a = { m: [n, k], v: [k], b: [batch, n, k] }[kind[0] as 'm' | 'v' | 'b'];
      const b = { m: [k, m], v: [k], b: [batch, k, m], 1: [1, k, m] }[kind[1] as 'm' | 'v' | 'b' | '1'];
      return checkGradients((x, y) => x.matmul(y), [a, b], from);
    }),
    { short: 60, long: 1000 },
  );
});

test('permute and broadcastTo', async () => {
  await checkGradients((x) => x.permute([2, 0, 1]), [[2, 3, 4]], 1);
  await checkGradients((x) => x.broadcastTo([2, 3, 4]), [[3, 1]], 1);
});

test('linear, with leading dimensions and without', async () => {
  for (const leading of [[], [3], [2, 3], [0]]) {
    await checkGradients((x, w, b) => linear(x, w, b), [[...leading, 5], [4, 5], [4]], 1);
    await checkGradients(
      (x, w) => linear(x, w),
      [
        [...leading, 5],
        [4, 5],
      ],
      2,
    );
  }
});

test('layerNorm and rmsNorm over one and two dimensions, with and without weights', async () => {
  for (const normalized of [[4], [3, 4]]) {
    const shapes = [[2, 3, 4], normalized, normalized];
    await checkGradients((x, weight, bias) => layerNorm(x, normalized, { weight, bias, eps: 0.1 }), shapes, 1);
    await checkGradients((x, weight) => rmsNorm(x, normalized, { weight, eps: 0.1 }), shapes.slice(0, 2), 2);
    await checkGradients((x) => layerNorm(x, normalized), [[2, 3, 4]], 3);
    await checkGradients((x) => rmsNorm(x, normalized), [[2, 3, 4]], 4);
  }
});

test('conv2d', async () => {
  const run: Loss = (x, w, b) => conv2d(x, w, b, { stride: [2, 1], padding: [1, 2] });
  await checkGradients(run, [[2, 2, 5, 4], [3, 2, 3, 2], [3]], 1);
});

test('embedding sums the gradients of a row that is used several times', async () => {
  const ids = Tensor.from([2n, 0n, 2n, 2n], [2, 2]);
  await checkGradients((weight) => embedding(ids, weight), [[3, 4]], 1);
});

test('crossEntropyLoss, every reduction, smoothed or not, with classes in the middle', async () => {
  const target = Tensor.from(Int32Array.of(1, 0, -100, 2, 1, 2), [2, 3]);
  for (const reduction of ['mean', 'sum', 'none'] as const) {
    for (const labelSmoothing of [0, 0.3]) {
      const options = { reduction, labelSmoothing };
      await checkGradients((logits) => crossEntropyLoss(logits, target, options), [[2, 4, 3]], 1);
    }
  }
});
