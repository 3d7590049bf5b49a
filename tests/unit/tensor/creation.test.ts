import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import { Generator } from '../../../src/core/generator';
import { manualSeed } from '../../../src/core/random';
import { Tensor } from '../../../src/tensor/tensor';

describe('Tensor.from', () => {
  test('numbers make float32, in the shape of the nested arrays', () => {
    const tensor = Tensor.from([
      [1, 2, 3],
      [4, 5, 6],
    ]);
    expect(tensor.shape).toEqual([2, 3]);
    expect(tensor.dtype).toBe('float32');
    expect(tensor.toArray()).toEqual([
      [1, 2, 3],
      [4, 5, 6],
    ]);
  });

  test('a single number has no dimensions', () => {
    expect(Tensor.from(7).shape).toEqual([]);
    expect(Tensor.from(7).item()).toBe(7);
    expect(Tensor.from([]).shape).toEqual([0]);
    expect(Tensor.from([[], []]).shape).toEqual([2, 0]);
  });

  test('flat numbers take the shape that is given', () => {
    expect(Tensor.from([1, 2, 3, 4], [2, 2]).toArray()).toEqual([
      [1, 2],
      [3, 4],
    ]);
  });

  test('a typed array keeps its dtype, and is copied', () => {
    const source = Int32Array.of(1, 2, 3);
    const tensor = Tensor.from(source);
    source[0] = 99;
    expect(tensor.dtype).toBe('int32');
    expect(tensor.toArray()).toEqual([1, 2, 3]);
    expect(Tensor.from(Float16Buffer.from([0.5])).dtype).toBe('float16');
    expect(Tensor.from(BFloat16Buffer.from([0.5])).toArray()).toEqual([0.5]);
  });

  test('bigints make int64, exact beyond 2^53', () => {
    const tensor = Tensor.from([2n ** 62n, -1n]);
    expect(tensor.dtype).toBe('int64');
    expect(tensor.toArray()).toEqual([2n ** 62n, -1n]);
  });

  test('a dtype that is given wins', () => {
    expect(Tensor.from([1.5, 2.5], undefined, { dtype: 'bfloat16' }).toArray()).toEqual([1.5, 2.5]);
    expect(Tensor.from([1, 2], undefined, { dtype: 'int64' }).toArray()).toEqual([1n, 2n]);
    expect(Tensor.from(Int32Array.of(3), undefined, { dtype: 'float64' }).dtype).toBe('float64');
  });

  test('what does not fit is refused, with the place', () => {
    expect(() => Tensor.from([[1, 2], [3]])).toThrow(/ragged: element 1 has shape \[1\], those before it \[2\]/);
    expect(() => Tensor.from([1, 2, 3], [2, 2])).toThrow(/3 elements do not fill shape \[2, 2\], which has 4/);
    expect(() => Tensor.from([1, 300], undefined, { dtype: 'uint8' })).toThrow(/element 1 is 300, which uint8/);
    expect(() => Tensor.from([0.5], undefined, { dtype: 'int32' })).toThrow(/element 0 is 0.5, which int32/);
    expect(() => Tensor.from([0.5], undefined, { dtype: 'int64' })).toThrow(/element 0 is 0.5, which int64/);
    expect(() => Tensor.from(['1' as unknown as number])).toThrow(/got string at \[0\]/);
    expect(() => Tensor.from(null as unknown as number)).toThrow(/got null/);
    expect(() => Tensor.from([1], [1.5])).toThrow(/expected a shape/);
    expect(() => Tensor.from([1], [-1])).toThrow(/expected a shape/);
  });

  test('a plain Uint16Array is refused, with what to write instead', () => {
    expect(() => Tensor.from(new Uint16Array(2) as never)).toThrow(/Float16Buffer.fromBits/);
    expect(() => Tensor.wrap(new Uint16Array(2) as never)).toThrow(/Float16Buffer.fromBits/);
  });

  test('unknown options are named, and integers cannot require a gradient', () => {
    expect(() => Tensor.from([1], undefined, { dytpe: 'int32' } as never)).toThrow(/unknown key 'dytpe'/);
    expect(() => Tensor.zeros([1], { dtype: 'int3' as never })).toThrow(/Tensor.zeros: options.dtype/);
    expect(() => Tensor.zeros([1], { dtype: 'int32', requiresGrad: true })).toThrow(/only floating point/);
  });
});

describe('Tensor.wrap', () => {
  test('shares the memory of the buffer', () => {
    const buffer = Float32Array.of(1, 2, 3, 4);
    const tensor = Tensor.wrap(buffer, [2, 2]);
    buffer[0] = 9;
    expect(tensor.toArray()).toEqual([
      [9, 2],
      [3, 4],
    ]);
    expect(Tensor.wrap(buffer).shape).toEqual([4]);
  });
});

describe('filled and random tensors', () => {
  test('zeros, ones and full have what they say', () => {
    expect(Tensor.zeros([2]).toArray()).toEqual([0, 0]);
    expect(Tensor.ones([1, 2], { dtype: 'int64' }).toArray()).toEqual([[1n, 1n]]);
    expect(Tensor.full([2], 0.1, { dtype: 'float16' }).toArray()).toEqual([0.0999755859375, 0.0999755859375]);
    expect(Tensor.full([1], -0).data[0]).toBe(-0);
  });

  test('the same generator state gives the same numbers; the default one is that of the context', () => {
    const first = Tensor.randn([50], { generator: new Generator(3) });
    expect(Tensor.randn([50], { generator: new Generator(3) })).toEqual(first);
    expect(Tensor.randn([50], { generator: new Generator(4) })).not.toEqual(first);
    manualSeed(5);
    const drawn = Tensor.rand([3]);
    manualSeed(5);
    expect(Tensor.rand([3])).toEqual(drawn);
  });

  test('rand is within [0, 1), randn has about mean 0 and variance 1', () => {
    const uniform = Tensor.rand([4000], { generator: new Generator(1) });
    expect(uniform.min().item()).toBeGreaterThanOrEqual(0);
    expect(uniform.max().item()).toBeLessThan(1);
    const normal = Tensor.randn([4000], { generator: new Generator(1) });
    expect(normal.mean().item()).toBeCloseTo(0, 1);
    expect(normal.pow(2).mean().item()).toBeCloseTo(1, 1);
  });

  test('random integers are refused', () => {
    expect(() => Tensor.rand([1], { dtype: 'int32' })).toThrow(/expected a floating point dtype, got int32/);
  });
});
