/** An element's bits depend on its operands alone: not on its position, nor on how much is computed in one call. */
import fc from 'fast-check';
import { Generator } from '../../../src/core/generator';
import { layerNorm, linear } from '../../../src/tensor/functional';
import { Tensor } from '../../../src/tensor/tensor';
import { holds } from '../../helpers/property';

const seed = fc.integer({ min: 0, max: 1e6 });

function random(shape: readonly number[], from: number): Tensor {
  return Tensor.randn(shape, { generator: new Generator(from) });
}

test('a product [7, k] x [k, 5] has the bits of the rows and columns of bigger ones', () => {
  for (const depth of [0, 1, 5, 64, 300]) {
    const a = random([50, depth], 1);
    const b = random([depth, 40], 2);
    const whole = a.matmul(b);
    const part = a.slice(0, 9, 16).matmul(b.slice(1, 31, 36));
    expect(part).toEqual(whole.slice(0, 9, 16).slice(1, 31, 36));
  }
});

test('so has any part of any product, with one row or column too', () => {
  const sizes = fc.record({
    rows: fc.integer({ min: 1, max: 12 }),
    columns: fc.integer({ min: 1, max: 12 }),
    depth: fc.integer({ min: 1, max: 40 }),
    from: seed,
  });
  holds(
    'parts of products',
    fc.property(sizes, fc.nat(), fc.nat(), ({ rows, columns, depth, from }, r, c) => {
      const a = random([rows, depth], from);
      const b = random([depth, columns], from + 1);
      const [row, column] = [r % rows, c % columns];
      const whole = a.matmul(b);
      expect(a.slice(0, row, rows).matmul(b.slice(1, 0, column + 1))).toEqual(
        whole.slice(0, row, rows).slice(1, 0, column + 1),
      );
      expect(a.slice(0, row, row + 1).matmul(b)).toEqual(whole.slice(0, row, row + 1));
    }),
    { short: 60, long: 2000 },
  );
});

test('a product is the float64 sum in ascending order, rounded once, whatever is transposed or batched', () => {
  const sizes = fc.tuple(
    fc.integer({ min: 1, max: 9 }),
    fc.integer({ min: 1, max: 9 }),
    fc.integer({ min: 0, max: 30 }),
  );
  holds(
    'products by hand',
    fc.property(sizes, seed, ([rows, columns, depth], from) => {
      const a = random([rows, depth], from);
      const b = random([depth, columns], from + 1);
      const expected = new Float32Array(rows * columns);
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < columns; j++) {
          let total = 0;
          for (let k = 0; k < depth; k++) total += Number(a.data[i * depth + k]) * Number(b.data[k * columns + j]);
          expected[i * columns + j] = total;
        }
      }
      const product = Tensor.wrap(expected, [rows, columns]);
      expect(a.matmul(b)).toEqual(product);
      expect(linear(a, b.transpose(0, 1))).toEqual(product);
      const batch = a.unsqueeze(0).broadcastTo([3, rows, depth]).matmul(b.unsqueeze(0));
      expect(batch.slice(0, 2, 3).squeeze(0)).toEqual(product);
    }),
    { short: 60, long: 2000 },
  );
});

test('the backward of linear has these bits too: a gradient of weights does not depend on the other weights', async () => {
  const gradientOf = async (outWidth: number): Promise<Tensor> => {
    const x = random([33, 20], 1);
    const weight = random([12, 20], 2).slice(0, 0, outWidth).detach();
    weight.requiresGrad = true;
    const seedGradient = random([33, 12], 3).slice(1, 0, outWidth);
    await linear(x, weight).backward(seedGradient);
    return weight.grad as Tensor;
  };
  expect((await gradientOf(12)).slice(0, 0, 5)).toEqual(await gradientOf(5));
});

const rowwise: Readonly<Record<string, (x: Tensor) => Tensor>> = {
  softmax: (x) => x.softmax(-1),
  logSoftmax: (x) => x.logSoftmax(-1),
  layerNorm: (x) => layerNorm(x, [x.shape.at(-1) as number]),
  'sum of a row': (x) => x.sum(-1, true),
  'mean of a row': (x) => x.mean(-1, true),
  gelu: (x) => x.gelu(),
  'add, broadcast': (x) => x.add(random([17], 9)),
};

test.each(Object.entries(rowwise))('%s of some rows is that of all rows, cut', (_name, operator) => {
  const x = random([20, 17], 4);
  expect(operator(x.slice(0, 3, 11))).toEqual(operator(x).slice(0, 3, 11));
});

test('a sum over rows is the same for a column alone', () => {
  const x = random([200, 9], 5);
  expect(x.slice(1, 4, 5).sum(0)).toEqual(x.sum(0).slice(0, 4, 5));
});
