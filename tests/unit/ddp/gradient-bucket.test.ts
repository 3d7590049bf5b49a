import { ReduceOp } from '../../../src/core/reduce-op';
import { GradientBucket } from '../../../src/ddp/gradient-bucket';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';

test('tensors come out as they went in, with their shapes, in the order added', () => {
  const bucket = new GradientBucket(100);
  expect(bucket.isEmpty).toBe(true);
  expect(bucket.add(Tensor.from([1, 2, 3]))).toBe(true);
  expect(bucket.add(Tensor.from([[4], [5]]))).toBe(true);
  expect(bucket.size).toBe(5);
  expect(Array.from(bucket.data as Float32Array)).toEqual([1, 2, 3, 4, 5]);
  expect(bucket.extract().map((tensor) => tensor.toArray())).toEqual([
    [1, 2, 3],
    [[4], [5]],
  ]);
  expect(bucket.extract()).toHaveLength(2); // extracting takes nothing away
});

test('a tensor that does not fit changes nothing, and an exact fit makes the bucket full', () => {
  const bucket = new GradientBucket(5);
  expect(bucket.add(Tensor.from([1, 2, 3]))).toBe(true);
  expect(bucket.add(Tensor.from([4, 5, 6]))).toBe(false);
  expect(bucket.size).toBe(3);
  expect(bucket.isFull).toBe(false);
  expect(bucket.add(Tensor.from([4, 5]))).toBe(true);
  expect(bucket.isFull).toBe(true);
});

test('data is live: what is reduced in it is what extract gives', async () => {
  const bucket = new GradientBucket(1000);
  bucket.add(Tensor.from([0.1, 0.2]));
  bucket.add(Tensor.from([0.3, 0.4, 0.5]));
  await ProcessGroup.mock().backend.allReduce(bucket.data, ReduceOp.Average);
  (bucket.data as Float32Array)[4] = 7;
  expect(bucket.extract()[1]?.toArray()).toEqual([Math.fround(0.3), Math.fround(0.4), 7]);
});

test('clear forgets tensors and dtype, not the capacity', () => {
  const bucket = new GradientBucket(4);
  bucket.add(Tensor.from([1, 2]));
  bucket.clear();
  expect(bucket.isEmpty).toBe(true);
  expect(bucket.extract()).toEqual([]);
  expect(bucket.capacity).toBe(4);
  expect(bucket.add(Tensor.zeros([4], { dtype: 'float64' }))).toBe(true);
});

test('a bucket of capacity 0 is empty and full, and takes tensors without elements', () => {
  const bucket = new GradientBucket(0);
  expect(bucket.isEmpty && bucket.isFull).toBe(true);
  expect(bucket.add(Tensor.zeros([0, 3]))).toBe(true);
  expect(bucket.extract()[0]?.shape).toEqual([0, 3]);
});

test('wrong capacities and mixed dtypes are named', () => {
  expect(() => new GradientBucket(-1)).toThrow('expected a capacity of 0 or more whole elements, got -1');
  expect(() => new GradientBucket(1.5)).toThrow('got 1.5');
  const bucket = new GradientBucket(10);
  bucket.add(Tensor.from([1]));
  expect(() => bucket.add(Tensor.zeros([1], { dtype: 'float64' }))).toThrow(
    'the bucket holds float32, got a float64 tensor',
  );
});
