import { ScratchPool } from '../../../src/core/scratch-pool';

const LENGTH = 64 * 1024;

test('a buffer comes back for the same dtype and length, and for no other', () => {
  const pool = new ScratchPool();
  const first = pool.take('float32', LENGTH);
  pool.release(first);
  expect(pool.take('float64', LENGTH)).not.toBe(first);
  expect(pool.take('float32', LENGTH + 1)).not.toBe(first);
  expect(pool.take('float32', LENGTH)).toBe(first);
  expect(pool.take('float32', LENGTH)).not.toBe(first);
});

test('a pool that was cleared has nothing left', () => {
  const pool = new ScratchPool();
  const first = pool.take('float32', LENGTH);
  pool.release(first);
  pool.clear();
  expect(pool.take('float32', LENGTH)).not.toBe(first);
});

test('small buffers are left to the collector, and so is what is more than it may keep', () => {
  const pool = new ScratchPool();
  const small = pool.take('uint8', 1024);
  pool.release(small);
  expect(pool.take('uint8', 1024)).not.toBe(small);
  const half = 20 * 1024 * 1024;
  const [first, second] = [pool.take('uint8', half), pool.take('uint8', half)];
  pool.release(first);
  pool.release(second);
  expect(pool.take('uint8', half)).toBe(second);
  expect(pool.take('uint8', half)).not.toBe(first);
});
