import fc from 'fast-check';
import { syncGradient, syncGradients } from '../../../src/comm/sync-gradients';
import { bytesOf, type DType } from '../../../src/core/dtype';
import { memory } from '../../../src/core/memory-account';
import { type MockBackend } from '../../../src/backend/registry';
import { sizeOf } from '../../../src/tensor/shape';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';
import { filled } from '../../helpers/fill';
import { holdsAsync } from '../../helpers/property';
import { WORLD_SIZES, onRanks, rejectionOf } from '../process-group/worlds';

interface Spec {
  readonly shape: readonly number[];
  readonly dtype: DType;
}

function gradientsOf(specs: readonly (Spec | undefined)[], size: number, rank: number): (Tensor | undefined)[] {
  return specs.map(
    (spec, index) =>
      spec && Tensor.wrap(filled(spec.dtype, sizeOf(spec.shape), size, rank, 'rounding', index * 31), spec.shape),
  );
}

test('the bits do not depend on whether gradients travel together or one by one', async () => {
  const spec = fc.record({
    shape: fc.array(fc.integer({ min: 0, max: 5 }), { maxLength: 3 }),
    dtype: fc.constantFrom<DType[]>('float32', 'float16', 'bfloat16', 'float64', 'int32'),
  });
  const cases = fc.record({
    size: fc.constantFrom(...WORLD_SIZES),
    specs: fc.array(fc.option(spec, { nil: undefined }), { maxLength: 6 }),
  });
  await holdsAsync(
    'syncGradients',
    fc.asyncProperty(cases, async ({ size, specs }) => {
      await onRanks(size, async (group) => {
        const together = gradientsOf(specs, size, group.rank);
        const alone = gradientsOf(specs, size, group.rank);
        await syncGradients(together, group);
        for (const gradient of alone) if (gradient !== undefined) await syncGradient(gradient, group);
        together.forEach((gradient, index) => {
          expect(gradient && bytesOf(gradient.data)).toEqual(alone[index] && bytesOf(alone[index].data));
          expect(gradient?.shape).toEqual(specs[index]?.shape);
        });
      });
    }),
    { short: 50, long: 1000 },
  );
});

test('averages in place: 1, 2, 3, 4 give 2.5', async () => {
  await onRanks(4, async (group) => {
    const gradients = [Tensor.from([group.rank + 1]), Tensor.from([[10 * (group.rank + 1), 0]])];
    await syncGradients(gradients, group);
    expect(gradients.map((gradient) => gradient.toArray())).toEqual([[2.5], [[25, 0]]]);
  });
});

test('takes one collective for each dtype', async () => {
  await onRanks(2, async (group) => {
    await syncGradients(
      [Tensor.zeros([3]), undefined, Tensor.zeros([2], { dtype: 'float64' }), Tensor.zeros([4])],
      group,
    );
    const { allReduce } = (group.backend as MockBackend).ledger;
    expect(allReduce).toEqual({ calls: 2, bytes: 7 * 4 + 2 * 8 });
  });
});

test('the copy is counted as communication while it lasts, and given back', async () => {
  await onRanks(2, async (group) => {
    const gradients = [Tensor.zeros([100]), Tensor.zeros([28])];
    const before = memory.totals().live;
    const synced = syncGradients(gradients, group);
    expect(memory.stats().live.communication).toBe(512);
    await synced;
    expect(memory.stats().live.communication).toBe(0);
    expect(memory.totals().live).toBe(before);
  });
});

test('where it fails, the gradients are left as they were', async () => {
  await onRanks(2, async (group) => {
    const gradients = [Tensor.from([1, 2]), group.rank === 0 ? Tensor.from([3]) : undefined];
    const error = await rejectionOf(syncGradients(gradients, group));
    expect(error).toMatchObject({ name: 'CollectiveMismatchError' });
    expect(error.message).toMatch(/float32\[3\].*float32\[2\]/s);
    expect(gradients[0]?.toArray()).toEqual([1, 2]);
  });
});

test('null counts as undefined', async () => {
  await onRanks(2, async (group) => syncGradients([null as unknown as undefined, Tensor.zeros([1])], group));
});

test.each<[string, (rank: number) => (Tensor | undefined)[]]>([
  ['another entry', (rank) => (rank === 0 ? [Tensor.ones([2]), undefined] : [undefined, Tensor.ones([2])])],
  [
    'another order',
    (rank) => (rank === 0 ? [Tensor.ones([2]), Tensor.ones([3])] : [Tensor.ones([3]), Tensor.ones([2])]),
  ],
])('gradients of %s on one rank are a mismatch, though their total size agrees', async (_name, tensorsOf) => {
  const run = runWorld(2, (world) => syncGradients(tensorsOf(world.rank), world.group));
  await expect(run).rejects.toThrow(/disagree about collective 0:\n\s+rank 0: allReduce\(.* of gradients float32\[2\]/);
});

test('a backward that has saved a gradient is refused after syncGradients has changed it', async () => {
  await runWorld(2, async (world) => {
    const saved = Tensor.from([1 + world.rank]);
    const loss = saved.mul(Tensor.from([2], [1], { requiresGrad: true })).sum();
    await syncGradients([saved], world.group);
    await expect(loss.backward()).rejects.toThrow('was changed in place since');
  });
});
