import { largestModel, planMemory } from '../../../src/zero/memory-plan';

const totals = (params: number, worldSize: number, precision: 'float32' | 'float16'): number[] =>
  planMemory({ params, worldSize, precision }).map(({ total }) => total);

// GB a rank of stages 1, 2 and 3 for mixed precision and Adam: Table 1 of arXiv 1910.02054
test.each([
  [7.5e9, 1, [120, 120, 120]],
  [7.5e9, 4, [52.5, 41.25, 30]],
  [7.5e9, 64, [31.41, 16.64, 1.875]],
  [7.5e9, 1024, [30.09, 15.1, 0.117]],
  [128e9, 16, [608, 368, 128]],
  [1e12, 1024, [4011.7, 2013.7, 15.6]],
])('%d parameters on %d ranks take what the paper prints', (params, worldSize, expected) => {
  const [plain, ...stages] = totals(params, worldSize, 'float16').map((bytes) => bytes / 1e9);
  expect(plain).toBeCloseTo((16 * params) / 1e9, 6);
  stages.forEach((gb, index) => expect(gb / (expected[index] as number)).toBeCloseTo(1, 2));
});

test('in float32 there are no masters: 16, 8 + 8/N, 4 + 12/N and 16/N bytes a parameter', () => {
  expect(totals(1000, 4, 'float32')).toEqual([16_000, 10_000, 7000, 4000]);
});

test('the largest model is the one whose states just fit', () => {
  const options = { worldSize: 8, precision: 'bfloat16', stateBuffers: 1 } as const;
  largestModel(1e9, options).forEach((params, stage) => {
    const total = (each: number): number => planMemory({ ...options, params: each })[stage]?.total as number;
    expect(total(params)).toBeLessThanOrEqual(1e9);
    expect(total(params + 1)).toBeGreaterThan(1e9);
  });
});

test('sizes that are none are refused by name', () => {
  expect(() => planMemory({ params: 0, worldSize: 4 })).toThrow(/params/);
  expect(() => planMemory({ params: 1, worldSize: 0 })).toThrow(/worldSize/);
  expect(() => largestModel(-1, { worldSize: 1 })).toThrow('expected bytes above 0, got -1');
});
