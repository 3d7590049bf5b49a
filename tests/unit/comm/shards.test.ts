import fc from 'fast-check';
import { gatherTensor, scatterTensor } from '../../../src/comm/shards';
import { DTYPES, bytesOf } from '../../../src/core/dtype';
import { memory } from '../../../src/core/memory-account';
import { concat } from '../../../src/tensor/functional';
import { sizeOf } from '../../../src/tensor/shape';
import { Tensor } from '../../../src/tensor/tensor';
import { filled } from '../../helpers/fill';
import { holdsAsync } from '../../helpers/property';
import { WORLD_SIZES, onRanks, rejectionOf } from '../process-group/worlds';

const smallShape = fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 1, maxLength: 4 });

test('gatherTensor undoes scatterTensor, for any shape, dim and dtype', async () => {
  const cases = fc.record({
    size: fc.constantFrom(...WORLD_SIZES),
    shape: smallShape,
    dim: fc.nat(),
    isNegative: fc.boolean(),
    dtype: fc.constantFrom(...DTYPES),
  });
  await holdsAsync(
    'scatterTensor and gatherTensor',
    fc.asyncProperty(cases, async ({ size, shape, dim, isNegative, dtype }) => {
      const along = dim % shape.length;
      const whole = shape.map((extent, index) => (index === along ? extent * size : extent));
      const asked = isNegative ? along - shape.length : along;
      await onRanks(size, async (group) => {
        const replicated = Tensor.wrap(filled(dtype, sizeOf(whole), 1, 0), whole);
        const slice = await scatterTensor(replicated, asked, group);
        expect(slice.shape).toEqual(shape);
        const gathered = await gatherTensor(slice, asked, group);
        expect(gathered.shape).toEqual(whole);
        expect(bytesOf(gathered.data)).toEqual(bytesOf(replicated.data));
      });
    }),
    { short: 60, long: 1000 },
  );
});

test('gatherTensor is the concatenation of the ranks` tensors', async () => {
  const cases = fc.record({ size: fc.constantFrom(...WORLD_SIZES), shape: smallShape, dim: fc.nat() });
  await holdsAsync(
    'gatherTensor',
    fc.asyncProperty(cases, async ({ size, shape, dim }) => {
      const along = dim % shape.length;
      const parts = Array.from({ length: size }, (_unused, rank) =>
        Tensor.wrap(filled('float32', sizeOf(shape), size, rank), shape),
      );
      const expected = concat(parts, along);
      await onRanks(size, async (group) => {
        const gathered = await gatherTensor(parts[group.rank] as Tensor, along, group);
        expect(gathered.shape).toEqual(expected.shape);
        expect(gathered.data).toEqual(expected.data);
      });
    }),
    { short: 60, long: 1000 },
  );
});

test('2-D slices along either dim', async () => {
  await onRanks(2, async (group) => {
    const whole = Tensor.from([
      [0, 1, 2, 3],
      [4, 5, 6, 7],
    ]);
    const rows = await scatterTensor(whole, 0, group);
    const columns = await scatterTensor(whole, 1, group);
    expect(rows.toArray()).toEqual(group.rank === 0 ? [[0, 1, 2, 3]] : [[4, 5, 6, 7]]);
    expect(columns.toArray()).toEqual(
      group.rank === 0
        ? [
            [0, 1],
            [4, 5],
          ]
        : [
            [2, 3],
            [6, 7],
          ],
    );
  });
});

test('a slice is a copy: changing it leaves the whole alone', async () => {
  await onRanks(2, async (group) => {
    const whole = Tensor.from([1, 2]);
    const slice = await scatterTensor(whole, 0, group);
    await group.allReduce(slice);
    expect(whole.toArray()).toEqual([1, 2]);
  });
});

test('only the result stays in the memory account', async () => {
  await onRanks(4, async (group) => {
    const tensor = Tensor.zeros([6, 8]);
    const before = memory.totals().live;
    const gathered = await gatherTensor(tensor, 1, group);
    expect(memory.totals().live - before).toBe(4 * 6 * 8 * 4);
    gathered.dispose();
    expect(memory.totals().live).toBe(before);
  });
});

describe('bad input', () => {
  test('a dim that does not divide: the error says the sizes, and nothing was sent', async () => {
    await onRanks(2, async (group) => {
      const error = await rejectionOf(scatterTensor(Tensor.zeros([4, 5]), 1, group));
      expect(error.message).toBe(
        `scatterTensor on rank ${group.rank} of group world: dimension 1 of shape [4, 5] has size 5, which does not divide into 2 equal parts, one per rank. Pad it to 6.`,
      );
      await group.barrier();
    });
  });

  test.each([
    [2, 'dimension 2 does not exist, expected -2 to 1'],
    [-3, 'dimension -3 does not exist, expected -2 to 1'],
    [0.5, 'dimension 0.5 does not exist'],
  ])('dim %d', async (dim, problem) => {
    await onRanks(2, async (group) => {
      for (const call of [scatterTensor, gatherTensor]) {
        const error = await rejectionOf(call(Tensor.zeros([2, 2]), dim, group));
        expect(error).toMatchObject({ name: 'InvalidArgumentError' });
        expect(error.message).toContain(problem);
      }
    });
  });

  test('a tensor without dimensions', async () => {
    await onRanks(2, async (group) => {
      for (const call of [scatterTensor, gatherTensor]) {
        expect((await rejectionOf(call(Tensor.from(1), 0, group))).message).toMatch(
          /a tensor without dimensions has none/,
        );
      }
    });
  });
});
