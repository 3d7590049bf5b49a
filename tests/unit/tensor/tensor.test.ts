import { inspect } from 'node:util';
import { isLockstepError } from '../../../src/core/errors';
import { Tensor } from '../../../src/tensor/tensor';

class Weight extends Tensor {
  readonly name = 'fc1.weight';
}

describe('comparison by a test framework', () => {
  test('shape, dtype and data are the own enumerable properties', () => {
    expect(Object.keys(Tensor.from([1, 2], undefined, { requiresGrad: true }))).toEqual(['shape', 'dtype', 'data']);
  });

  test('equal tensors are equal, and different ones are not', () => {
    const tensor = Tensor.from([1, 2]);
    expect(tensor).toEqual(Tensor.from([1, 2]));
    expect(tensor).not.toEqual(Tensor.from([1, 3]));
    expect(tensor).not.toEqual(Tensor.from([[1, 2]]));
    expect(tensor).not.toEqual(Tensor.from([1, 2], undefined, { dtype: 'float64' }));
    expect(Tensor.from([0])).not.toEqual(Tensor.from([NaN]));
  });

  test('how a tensor came about does not matter', () => {
    const computed = Tensor.from([1, 2], undefined, { requiresGrad: true }).mul(2);
    expect(computed).toEqual(Tensor.from([2, 4]));
  });
});

describe('reading', () => {
  test('item gives the only element and refuses more', () => {
    expect(Tensor.from([[2.5]]).item()).toBe(2.5);
    expect(() => Tensor.from([1, 2]).item()).toThrow(/expected a tensor of one element, got shape \[2\]/);
  });

  test('int64 beyond 2^53 is read as a bigint only', () => {
    const large = Tensor.from([2n ** 60n + 1n]);
    expect(large.itemBigInt()).toBe(2n ** 60n + 1n);
    expect(() => large.item()).toThrow(/use itemBigInt/);
    expect(Tensor.from([5n]).item()).toBe(5);
    expect(Tensor.from(Int32Array.of(5)).itemBigInt()).toBe(5n);
    expect(() => Tensor.from([1]).itemBigInt()).toThrow(/expected integers, got float32/);
  });

  test('toHost gives the memory itself', async () => {
    const buffer = Float32Array.of(1, 2);
    expect(await Tensor.wrap(buffer).toHost()).toBe(buffer);
  });

  test('16-bit elements are read as values', () => {
    const tensor = Tensor.from([1, -0.5], undefined, { dtype: 'float16' });
    expect(tensor.toArray()).toEqual([1, -0.5]);
    expect(tensor.data.BYTES_PER_ELEMENT).toBe(2);
  });
});

describe('printing', () => {
  test('shows shape, dtype, elements and whether a gradient is wanted', () => {
    const tensor = Tensor.from([
      [1, 2, 3],
      [4, 5, 6],
    ]);
    expect(inspect(tensor)).toBe('Tensor [2, 3] float32 [[1, 2, 3], [4, 5, 6]]');
    tensor.requiresGrad = true;
    expect(inspect({ tensor })).toContain('[[1, 2, 3], [4, 5, 6]] requiresGrad');
    expect(inspect(Tensor.from(3n))).toBe('Tensor [] int64 3n');
    expect(inspect(Tensor.zeros([0, 2]))).toBe('Tensor [0, 2] float32 []');
  });

  test('shortens numbers and long dimensions', () => {
    const long = Tensor.from(Float32Array.from({ length: 100 }, (_unused, i) => i / 3));
    expect(inspect(long)).toBe('Tensor [100] float32 [0, 0.33333, 0.66667, ..., 32.333, 32.667, 33]');
    expect(inspect(Tensor.zeros([200, 200])).length).toBeLessThan(400);
    expect(inspect(Tensor.from([NaN, -0, Infinity]))).toBe('Tensor [3] float32 [NaN, -0, Infinity]');
  });

  test('names subclasses', () => {
    expect(inspect(new Weight(Tensor.from([1])))).toBe('Weight [1] float32 [1]');
  });
});

describe('aliases and copies', () => {
  test('detach shares memory and leaves the graph', () => {
    const leaf = Tensor.from([1, 2], undefined, { requiresGrad: true });
    const product = leaf.mul(3);
    const detached = product.detach();
    expect(detached.requiresGrad).toBe(false);
    expect(detached.isLeaf).toBe(true);
    expect(detached.data).toBe(product.data);
    expect(product.isLeaf).toBe(false);
  });

  test('clone copies, and passes gradients on', async () => {
    const leaf = Tensor.from([1, 2], undefined, { requiresGrad: true });
    const copy = leaf.clone();
    expect(copy).toEqual(leaf);
    expect(copy.data).not.toBe(leaf.data);
    await copy.sum().backward();
    expect(leaf.grad?.toArray()).toEqual([1, 1]);
  });

  test('to gives the tensor itself for its own dtype, and refuses an unknown one', () => {
    const tensor = Tensor.from([1.7, -1.7, NaN]);
    expect(tensor.to('float32')).toBe(tensor);
    expect(tensor.to('int32').toArray()).toEqual([1, -1, 0]);
    expect(tensor.to('int64').toArray()).toEqual([1n, -1n, 0n]);
    expect(
      Tensor.from([2n ** 40n])
        .to('float64')
        .toArray(),
    ).toEqual([2 ** 40]);
    expect(() => tensor.to('float8' as never)).toThrow(/float8 is no dtype/);
  });

  test('a cast passes the gradient back in the first dtype', async () => {
    const leaf = Tensor.from([1, 2], undefined, { requiresGrad: true });
    await leaf.to('float64').mul(0.5).sum().backward();
    expect(leaf.grad).toEqual(Tensor.from([0.5, 0.5]));
  });
});

describe('a disposed tensor', () => {
  test('cannot be used; the message names it', () => {
    const tensor = Tensor.zeros([2, 3]);
    tensor.dispose();
    tensor.dispose();
    expect(tensor.isDisposed).toBe(true);
    expect(() => tensor.add(1)).toThrow(/a float32 tensor of shape \[2, 3\] was disposed of/);
    expect(() => tensor.data).toThrow(/was disposed of/);
    expect(() => tensor.toArray()).toThrow(/was disposed of/);
    expect(inspect(tensor)).toBe('Tensor [2, 3] float32 (disposed)');
  });

  test('is named by its name if it has one, and the error is typed', () => {
    const weight = new Weight(Tensor.zeros([2]));
    weight[Symbol.dispose]();
    expect(() => Tensor.zeros([2]).mul(weight)).toThrow(/parameter 'fc1.weight' \(float32 \[2\]\) was disposed of/);
    let thrown: unknown;
    try {
      weight.neg();
    } catch (error) {
      thrown = error;
    }
    expect(isLockstepError(thrown, 'LOCKSTEP_INVALID_ARGUMENT')).toBe(true);
  });

  test('rejects, where the call gives a promise', async () => {
    const tensor = Tensor.zeros([1]);
    tensor.dispose();
    await expect(tensor.toHost()).rejects.toThrow(/was disposed of/);
  });
});

describe('requiresGrad', () => {
  test('can be set on leaves only', () => {
    const leaf = Tensor.from([1]);
    leaf.requiresGrad = true;
    const computed = leaf.mul(2);
    computed.requiresGrad = true;
    expect(() => (computed.requiresGrad = false)).toThrow(/detach\(\)/);
    expect(() => computed.onGradientReady(() => undefined)).toThrow(/was computed from others/);
    expect(computed.grad).toBeUndefined();
  });

  test('a gradient of another shape or of integers is refused', () => {
    const leaf = new Weight(Tensor.from([1, 2]), { requiresGrad: true });
    expect(() => (leaf.grad = Tensor.from([1]))).toThrow(/shape \[2\] for parameter 'fc1.weight'.*got float32 \[1\]/);
    expect(() => (leaf.grad = Tensor.from(Int32Array.of(1, 2)))).toThrow(/got int32 \[2\]/);
    expect(() => (leaf.gradientBuffer = Tensor.from([1]))).toThrow(/gradientBuffer: expected/);
    leaf.grad = Tensor.from([3, 4]);
    expect(leaf.grad.toArray()).toEqual([3, 4]);
    leaf.grad = undefined;
    expect(leaf.grad).toBeUndefined();
  });
});
