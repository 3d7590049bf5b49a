/** What the golden vectors do not cover: values by definition, and refusals. */
import fc from 'fast-check';
import { Generator } from '../../../src/core/generator';
import {
  concat,
  conv2d,
  crossEntropyLoss,
  dropout,
  embedding,
  indexSelect,
  layerNorm,
  linear,
  rmsNorm,
  stack,
  where,
} from '../../../src/tensor/functional';
import { Tensor } from '../../../src/tensor/tensor';
import { holds } from '../../helpers/property';

const iota = (shape: number[]): Tensor =>
  Tensor.wrap(
    Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_unused, i) => i),
    shape,
  );

describe('broadcasting', () => {
  const extent = fc.constantFrom(1, 2, 3);
  const shapes = fc.tuple(fc.array(extent, { maxLength: 4 }), fc.array(extent, { maxLength: 4 }));

  /** The element of `tensor` that broadcasting to `shape` shows at `index`. */
  function elementAt(tensor: Tensor, index: readonly number[]): number {
    let nested: unknown = tensor.toArray();
    const own = index.slice(index.length - tensor.shape.length);
    own.forEach((i, dim) => (nested = (nested as unknown[])[tensor.shape[dim] === 1 ? 0 : i]));
    return nested as number;
  }

  test('of any two shapes gives the element-wise result, or an error with both shapes', () => {
    holds(
      'broadcasting',
      fc.property(shapes, ([shapeA, shapeB]) => {
        const a = iota(shapeA);
        const b = iota(shapeB).mul(10);
        const rank = Math.max(shapeA.length, shapeB.length);
        const pairs = Array.from({ length: rank }, (_unused, i): [number, number] => [
          shapeA.at(i - rank) ?? 1,
          shapeB.at(i - rank) ?? 1,
        ]);
        if (pairs.some(([x, y]) => x !== y && x !== 1 && y !== 1)) {
          expect(() => a.sub(b)).toThrow(`shapes [${shapeA.join(', ')}] and [${shapeB.join(', ')}] do not broadcast`);
          return;
        }
        const result = a.sub(b);
        expect(result.shape).toEqual(pairs.map(([x, y]) => Math.max(x, y)));
        const visit = (index: number[]): void => {
          if (index.length < rank) {
            for (let i = 0; i < (result.shape[index.length] as number); i++) visit([...index, i]);
          } else expect(elementAt(result, index)).toBe(elementAt(a, index) - elementAt(b, index));
        };
        visit([]);
      }),
    );
  });
});

describe('comparisons and choices', () => {
  const x = Tensor.from([1, 2, NaN]);

  test('give 1 and 0 as uint8; NaN equals nothing', () => {
    const twos = Tensor.from([2, 2, NaN]);
    expect(x.eq(twos)).toEqual(Tensor.from(Uint8Array.of(0, 1, 0)));
    expect(x.ne(twos).toArray()).toEqual([1, 0, 1]);
    expect(x.gt(1).toArray()).toEqual([0, 1, 0]);
    expect(x.ge(1).toArray()).toEqual([1, 1, 0]);
    expect(x.lt(2).toArray()).toEqual([1, 0, 0]);
    expect(x.le(2).toArray()).toEqual([1, 1, 0]);
  });

  test('a number is compared in the dtype of the tensor', () => {
    expect(Tensor.from([0.1]).eq(0.1).item()).toBe(1);
    expect(Tensor.from([0.1], undefined, { dtype: 'bfloat16' }).eq(0.1).item()).toBe(1);
    expect(Tensor.from(Int32Array.of(2, 3)).gt(2.5).toArray()).toEqual([0, 1]);
    expect(Tensor.from([2n, 3n]).gt(2.5).toArray()).toEqual([0, 1]);
    expect(Tensor.from([2n, 3n]).eq(3).toArray()).toEqual([0, 1]);
  });

  test('count right answers', () => {
    const logits = Tensor.from([
      [1, 5, 2],
      [7, 0, 1],
    ]);
    const labels = Tensor.from(Int32Array.of(1, 2));
    expect(logits.argmax(-1).eq(labels).sum().item()).toBe(1);
  });

  test('where chooses, maskedFill replaces', () => {
    expect(where(x.gt(1), x, -1).toArray()).toEqual([-1, 2, -1]);
    expect(where(x.gt(1), 5, x).toArray()).toEqual([1, 5, NaN]);
    expect(x.maskedFill(x.eq(2), -Infinity).toArray()).toEqual([1, -Infinity, NaN]);
    expect(() => where(x, x, x)).toThrow(/expected a uint8 condition, as comparisons give, got float32/);
    expect(() => where(x.gt(0), 1, 2)).toThrow(/two numbers/);
  });
});

describe('moving elements', () => {
  test('permute, transpose, unsqueeze and squeeze', () => {
    const x = iota([2, 3, 4]);
    expect(x.permute([2, 0, 1]).shape).toEqual([4, 2, 3]);
    expect(x.permute([2, 0, 1])).toEqual(x.transpose(0, 2).transpose(1, 2));
    expect(x.unsqueeze(-1).shape).toEqual([2, 3, 4, 1]);
    expect(x.unsqueeze(0).squeeze(0)).toEqual(x);
    expect(() => x.squeeze(1)).toThrow(/do not fit/);
    expect(() => x.permute([0, 0, 1])).toThrow(
      /expected each of the 3 dimensions of \[2, 3, 4\] once, got \[0, 0, 1\]/,
    );
    expect(() => x.transpose(0, 3)).toThrow(/dimension 3 does not exist, expected -3 to 2/);
  });

  test('reshape takes a list or the sizes, and shares memory', () => {
    const x = iota([2, 3]);
    expect(x.reshape(3, 2)).toEqual(x.reshape([3, 2]));
    expect(x.reshape([-1]).data).toBe(x.data);
    expect(() => x.reshape([4, -1])).toThrow(/the 6 elements of shape \[2, 3\] do not fit \[4, -1\]/);
    expect(() => x.reshape([-1, -1])).toThrow(/At most one size may be -1/);
  });

  test('slice, concat and stack check their sizes', () => {
    const x = iota([2, 3]);
    expect(concat([x.slice(1, 0, 1), x.slice(1, 1, 3)], 1)).toEqual(x);
    expect(stack([x, x], 1).shape).toEqual([2, 2, 3]);
    expect(() => x.slice(1, 2, 5)).toThrow(/\[2, 5\) is not a range of dimension 1, which has 3 elements/);
    expect(() => concat([x, iota([2, 4])], 0)).toThrow(/\[2, 3\] and \[2, 4\] differ beside dimension 0/);
    expect(() => concat([x, x.to('float64')], 0)).toThrow(/dtypes float32 and float64 differ/);
    expect(() => concat([], 0)).toThrow(/at least one tensor/);
    expect(() => stack([x, iota([3])], 0)).toThrow(/stack: shapes \[2, 3\] and \[3\] differ/);
  });

  test('broadcastTo repeats, and refuses to shrink', () => {
    expect(iota([2, 1]).broadcastTo([2, 2]).toArray()).toEqual([
      [0, 0],
      [1, 1],
    ]);
    expect(() => iota([2, 3]).broadcastTo([3])).toThrow(/\[2, 3\] does not broadcast to \[3\]/);
  });

  test('long rows are copied whole, in any dtype', () => {
    const x = Tensor.from(
      BigInt64Array.from({ length: 400 }, (_unused, i) => BigInt(i)),
      [2, 200],
    );
    expect(concat([x, x], 1).slice(1, 200, 400)).toEqual(x);
  });
});

describe('reductions', () => {
  test('over nothing: sums are 0, means NaN, extremes refused', () => {
    const empty = Tensor.zeros([0, 2]);
    expect(empty.sum(0).toArray()).toEqual([0, 0]);
    expect(empty.mean().item()).toBeNaN();
    expect(() => empty.max()).toThrow(/max: no elements to choose from in shape \[0, 2\]/);
    expect(() => empty.argmax(0)).toThrow(/argmax: no elements/);
    expect(empty.max(1).shape).toEqual([0]);
  });

  test('dimensions are checked', () => {
    expect(() => iota([2, 3]).sum([0, 0])).toThrow(/dimension 0 is named twice/);
    expect(() => iota([2, 3]).sum(2)).toThrow(/dimension 2 does not exist/);
    expect(() => Tensor.from(1).sum(0)).toThrow(/a tensor without dimensions has none/);
  });

  test('argmax gives the first of the largest, NaN before any number, along a dimension or flat', () => {
    const x = Tensor.from([
      [1, 3, 3],
      [NaN, 9, 2],
    ]);
    expect(x.argmax(1)).toEqual(Tensor.from(Int32Array.of(1, 0)));
    expect(x.argmax(0).toArray()).toEqual([1, 1, 0]);
    expect(x.argmax(1, true).shape).toEqual([2, 1]);
    expect(x.argmax().item()).toBe(3);
  });
});

describe('layers', () => {
  test('smoothed crossEntropyLoss mixes the target with all classes', () => {
    const logits = Tensor.randn([5, 4], { generator: new Generator(1), dtype: 'float64' });
    const target = Tensor.from([0n, 3n, 1n, 1n, 2n]);
    const logs = logits.logSoftmax(1);
    const oneHot = Tensor.from(
      [0, 3, 1, 1, 2].map((label) => [0, 1, 2, 3].map((k) => (k === label ? 1 : 0))),
      undefined,
      { dtype: 'float64' },
    );
    const soft = oneHot.mul(0.8).add(0.2 / 4);
    const expected = logs.mul(soft).sum(1).neg();
    const losses = crossEntropyLoss(logits, target, { reduction: 'none', labelSmoothing: 0.2 });
    expect(losses.sub(expected).abs().max().item()).toBeLessThan(1e-12);
  });

  test('crossEntropyLoss of one row, and of classes in the middle', () => {
    const logits = iota([3]);
    const one = crossEntropyLoss(logits, Tensor.from(2, [], { dtype: 'int32' }));
    expect(one.item()).toBeCloseTo(Math.log(1 + Math.exp(-1) + Math.exp(-2)), 6);
    const image = logits.reshape(1, 3, 1).broadcastTo([2, 3, 4]);
    const labels = Tensor.full([2, 4], 2, { dtype: 'int64' });
    expect(crossEntropyLoss(image, labels, { reduction: 'none' })).toEqual(one.broadcastTo([2, 4]));
  });

  test('a class that does not exist, another shape or dtype of targets, an unknown option: refused', () => {
    const logits = iota([2, 3]);
    expect(() => crossEntropyLoss(logits, Tensor.from(Int32Array.of(0, 3)))).toThrow(
      /crossEntropy: target: index 3 \(at position 1\) is outside 0 to 2/,
    );
    expect(() => crossEntropyLoss(logits, Tensor.from(Int32Array.of(0)))).toThrow(/got \[2, 3\] and \[1\]/);
    expect(() => crossEntropyLoss(logits, Tensor.from([0, 1]))).toThrow(/expected int32 or int64 indices, got float32/);
    const target = Tensor.from(Int32Array.of(0, 1));
    expect(() => crossEntropyLoss(logits, target, { ignore: 1 } as never)).toThrow(/unknown key 'ignore'/);
    expect(() => crossEntropyLoss(logits, target, { labelSmoothing: 2 })).toThrow(/options.labelSmoothing/);
  });

  test('embedding and indexSelect take ids of any shape and refuse those outside', () => {
    const table = iota([3, 2]);
    expect(embedding(Tensor.from([[2n], [0n]]), table).toArray()).toEqual([[[4, 5]], [[0, 1]]]);
    expect(indexSelect(table, 1, Tensor.from(Int32Array.of(1)))).toEqual(table.slice(1, 1, 2));
    expect(() => embedding(Tensor.from([3n]), table)).toThrow(/embedding: index 3 \(at position 0\) is outside 0 to 2/);
    expect(() => embedding(Tensor.from([-1n]), table)).toThrow(/index -1/);
    expect(() => embedding(Tensor.from([1]), table)).toThrow(/expected int32 or int64/);
  });

  test('dropout drops about the share it was given, scales the rest, and repeats with the generator', async () => {
    const x = Tensor.ones([1000], { requiresGrad: true });
    const dropped = dropout(x, 0.25, { generator: new Generator(7) });
    const zeros = dropped.eq(0).sum().item();
    expect(zeros).toBeGreaterThan(200);
    expect(zeros).toBeLessThan(300);
    expect(dropped.max().item()).toBe(Math.fround(4 / 3));
    expect(dropout(x, 0.25, { generator: new Generator(7) })).toEqual(dropped);
    await dropped.sum().backward();
    expect(x.grad).toEqual(dropped);
    expect(dropout(x, 0)).toBe(x);
    expect(dropout(x, 1).max().item()).toBe(0);
    expect(() => dropout(x, 1.5)).toThrow(/probability from 0 to 1, got 1.5/);
  });

  test('shapes that do not fit are refused with all shapes', () => {
    const x = iota([2, 3]);
    expect(() => x.matmul(iota([2, 3]))).toThrow(
      /\[2, 3\] and \[2, 3\] do not multiply: the inner sizes 3 and 2 differ/,
    );
    expect(() => x.matmul(Tensor.from(1))).toThrow(/a tensor without dimensions is no matrix/);
    expect(() => iota([2, 2, 3]).matmul(iota([3, 3, 2]))).toThrow(/do not broadcast/);
    expect(() => linear(x, iota([4, 2]))).toThrow(/weight \[out, in\] and bias \[out\], got \[2, 3\], \[4, 2\]/);
    expect(() => linear(x, iota([4, 3]), iota([3]))).toThrow(/and \[3\]\.$/);
    expect(() => layerNorm(x, [2])).toThrow(/the last dimensions to be \[2\], got shape \[2, 3\]/);
    expect(() => layerNorm(x, [3], { weight: iota([2]) })).toThrow(/weight and bias of shape \[3\], got \[2\]/);
    expect(() => rmsNorm(x, [])).toThrow(/the last dimensions to be \[\]/);
    expect(() => conv2d(iota([1, 2, 3, 3]), iota([1, 3, 2, 2]))).toThrow(/\[1, 2, 3, 3\], \[1, 3, 2, 2\]/);
    expect(() => conv2d(iota([1, 2, 3, 3]), iota([1, 2, 4, 4]))).toThrow(/no larger than the padded image/);
    expect(() => conv2d(iota([1, 1, 3, 3]), iota([1, 1, 1, 1]), undefined, { stride: 0 })).toThrow(/options.stride/);
  });
});
