import {
  allReduceMax,
  allReduceMean,
  allReduceMin,
  allReduceProduct,
  allReduceSum,
  reduceScatterMean,
  reduceScatterSum,
  reduceTo,
  ringAllReduce,
} from '../../../src/comm/reductions';
import { barrier, isMainProcess, rank, worldSize } from '../../../src/comm/comm';
import { allGather, allToAll, broadcast, broadcastFrom, gatherTo, scatterFrom } from '../../../src/comm/movement';
import { recvTensor, sendTensor } from '../../../src/comm/point-to-point';
import { gatherTensor, scatterTensor } from '../../../src/comm/shards';
import { syncGradient, syncGradients } from '../../../src/comm/sync-gradients';
import { DTYPES, bytesOf, isFloatDType } from '../../../src/core/dtype';
import { ReduceOp } from '../../../src/core/reduce-op';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';
import { filled } from '../../helpers/fill';
import { reducedElement, storedValue } from '../../helpers/reduction';
import { WORLD_SIZES, onRanks, rejectionOf } from '../process-group/worlds';

const numbers = (tensor: Tensor | undefined): number[] => Array.from((tensor as Tensor).data, Number);

describe('a group of one, as in the crate', () => {
  const group = ProcessGroup.mock();
  afterAll(() => group.close());

  test.each([
    ['allReduceSum', allReduceSum],
    ['allReduceMean', allReduceMean],
    ['allReduceMin', allReduceMin],
    ['allReduceMax', allReduceMax],
    ['allReduceProduct', allReduceProduct],
    ['ringAllReduce', ringAllReduce],
    ['syncGradient', syncGradient],
    ['broadcast', broadcast],
  ])('%s leaves [1, 2, 3] as it is', async (_name, call) => {
    const tensor = Tensor.from([1, 2, 3]);
    await call(tensor, group);
    expect(tensor.toArray()).toEqual([1, 2, 3]);
  });

  test('the other functions', async () => {
    const tensor = Tensor.from([1, 2]);
    await broadcastFrom(tensor, 0, group);
    await reduceTo(tensor, 0, group, ReduceOp.Sum);
    expect(tensor.toArray()).toEqual([1, 2]);
    expect((await allGather(tensor, group)).toArray()).toEqual([[1, 2]]);
    expect((await gatherTo(tensor, 0, group))?.toArray()).toEqual([[1, 2]]);
    for (const call of [reduceScatterSum, reduceScatterMean, allToAll]) {
      expect((await call(tensor, group)).toArray()).toEqual([1, 2]);
    }
    expect((await scatterFrom(tensor, 0, group)).toArray()).toEqual([1, 2]);
    expect((await scatterTensor(Tensor.from([1, 2, 3, 4]), 0, group)).toArray()).toEqual([1, 2, 3, 4]);
    expect((await gatherTensor(tensor, 0, group)).toArray()).toEqual([1, 2]);
    const gradients = [Tensor.from([1, 2]), Tensor.from([3, 4])];
    await syncGradients(gradients, group);
    expect(gradients.map((gradient) => gradient.toArray())).toEqual([
      [1, 2],
      [3, 4],
    ]);
    await barrier(group);
    expect([rank(group), worldSize(group), isMainProcess(group)]).toEqual([0, 1, true]);
  });

  test('a tensor without elements goes through everything', async () => {
    const empty = Tensor.zeros([0, 3]);
    await allReduceMean(empty, group);
    expect((await allGather(empty, group)).shape).toEqual([1, 0, 3]);
    expect((await reduceScatterSum(empty, group)).shape).toEqual([0, 3]);
    expect((await scatterTensor(empty, 0, group)).shape).toEqual([0, 3]);
    expect((await gatherTensor(empty, 1, group)).shape).toEqual([0, 3]);
    await syncGradients([empty, undefined], group);
    await syncGradients([], group);
  });
});

describe.each(WORLD_SIZES)('%i ranks', (size) => {
  const ranks = Array.from({ length: size }, (_unused, index) => index);

  test.each([
    ['allReduceSum', allReduceSum, ReduceOp.Sum],
    ['allReduceMean', allReduceMean, ReduceOp.Average],
    ['allReduceMin', allReduceMin, ReduceOp.Min],
    ['allReduceMax', allReduceMax, ReduceOp.Max],
    ['allReduceProduct', allReduceProduct, ReduceOp.Product],
    ['ringAllReduce', ringAllReduce, ReduceOp.Sum],
  ] as const)(
    '%s gives the reduction in rank order, in every dtype, the same bits on all ranks',
    async (_name, call, op) => {
      for (const dtype of DTYPES) {
        const fill = isFloatDType(dtype) ? 'rounding' : 'counted';
        const byRank = ranks.map(
          (from) => Tensor.wrap(filled(dtype, 5, size, from, fill)).toArray() as (number | bigint)[],
        );
        const expected = [0, 1, 2, 3, 4].map((i) =>
          reducedElement(
            dtype,
            op,
            byRank.map((elements) => storedValue(dtype, Number(elements[i]))),
          ),
        );
        const results = await onRanks(size, async (group) => {
          const tensor = Tensor.wrap(filled(dtype, 5, size, group.rank, fill));
          await call(tensor, group);
          return tensor;
        });
        expect(results[0]?.toArray()).toEqual(expected);
        for (const result of results) expect(bytesOf(result.data)).toEqual(bytesOf((results[0] as Tensor).data));
      }
    },
  );

  test('ringAllReduce has the bits of allReduce, for every op', async () => {
    await onRanks(size, async (group) => {
      for (const op of [ReduceOp.Sum, ReduceOp.Average, ReduceOp.Product, ReduceOp.Min, ReduceOp.Max]) {
        const [ring, plain] = [1, 2].map(() => Tensor.wrap(filled('float32', 9, size, group.rank, 'rounding'))) as [
          Tensor,
          Tensor,
        ];
        await ringAllReduce(ring, group, op);
        await group.allReduce(plain, op);
        expect(bytesOf(ring.data)).toEqual(bytesOf(plain.data));
      }
    });
  });

  test('reduceScatter is this rank`s part of the all-reduce, bit for bit', async () => {
    await onRanks(size, async (group) => {
      for (const [scatter, reduce] of [
        [reduceScatterSum, allReduceSum],
        [reduceScatterMean, allReduceMean],
      ] as const) {
        const whole = Tensor.wrap(filled('float32', size * 6, size, group.rank, 'rounding'), [size * 2, 3]);
        const part = await scatter(whole, group);
        await reduce(whole, group);
        expect(part.shape).toEqual([2, 3]);
        expect(bytesOf(part.data)).toEqual(bytesOf(whole.slice(0, group.rank * 2, group.rank * 2 + 2).data));
      }
    });
  });

  test('broadcast is from rank 0, broadcastFrom from any', async () => {
    await onRanks(size, async (group) => {
      const tensor = Tensor.from([group.rank * 100]);
      await broadcastFrom(tensor, size - 1, group);
      expect(tensor.item()).toBe((size - 1) * 100);
      const other = Tensor.from([group.rank + 7]);
      await broadcast(other, group);
      expect(other.item()).toBe(7);
    });
  });

  test('reduceTo, gatherTo and scatterFrom', async () => {
    await onRanks(size, async (group) => {
      for (const root of ranks) {
        const tensor = Tensor.from([group.rank + 1, 2]);
        await reduceTo(tensor, root, group, ReduceOp.Sum);
        const sum = (size * (size + 1)) / 2;
        expect(tensor.toArray()).toEqual(group.rank === root ? [sum, 2 * size] : [group.rank + 1, 2]);
        const gathered = await gatherTo(Tensor.from([group.rank, -1]), root, group);
        expect(gathered?.toArray()).toEqual(group.rank === root ? ranks.map((from) => [from, -1]) : undefined);
        const whole = group.rank === root ? Tensor.from(ranks.map((to) => [to, root])) : undefined;
        expect((await scatterFrom(whole, root, group)).toArray()).toEqual([[group.rank, root]]);
      }
    });
  });

  test('what is passed to scatterFrom on other ranks is not looked at', async () => {
    await onRanks(size, async (group) => {
      const part = await scatterFrom(Tensor.from([...ranks, ...ranks].map((value) => value + group.rank)), 0, group);
      expect(numbers(part)).toEqual([...ranks, ...ranks].slice(group.rank * 2, group.rank * 2 + 2));
    });
  });

  test('sendTensor and recvTensor pass around the ring, by tag', async () => {
    if (size === 1) return;
    await onRanks(size, async (group) => {
      const [next, previous] = [(group.rank + 1) % size, (group.rank + size - 1) % size];
      const [low, high] = [Tensor.zeros([2]), Tensor.zeros([2])];
      await Promise.all([
        sendTensor(Tensor.from([group.rank, 5]), next, group, { tag: 5 }),
        sendTensor(Tensor.from([group.rank, 9]), next, group, { tag: 9, timeoutMs: 5000 }),
        recvTensor(high, previous, group, { tag: 9 }),
        recvTensor(low, previous, group, { tag: 5 }),
      ]);
      expect([low.toArray(), high.toArray()]).toEqual([
        [previous, 5],
        [previous, 9],
      ]);
    });
  });

  test('rank, worldSize and isMainProcess speak of the group`s own rank and the world`s size', async () => {
    await onRanks(size, async (world) => {
      const last = await world.newGroup([size - 1]);
      expect(worldSize(last)).toBe(size);
      expect(rank(last)).toBe(world.rank === size - 1 ? 0 : -1);
      expect(isMainProcess(last)).toBe(world.rank === size - 1);
      expect([rank(world), worldSize(world), isMainProcess(world)]).toEqual([world.rank, size, world.rank === 0]);
      await barrier(world);
    });
  });
});

describe('bad input', () => {
  const calls: readonly (readonly [string, (group: ProcessGroup, tensor: Tensor) => PromiseLike<unknown>])[] = [
    ['allReduceSum', (group, tensor) => allReduceSum(tensor, group)],
    ['allReduceMean', (group, tensor) => allReduceMean(tensor, group)],
    ['allReduceMin', (group, tensor) => allReduceMin(tensor, group)],
    ['allReduceMax', (group, tensor) => allReduceMax(tensor, group)],
    ['allReduceProduct', (group, tensor) => allReduceProduct(tensor, group)],
    ['ringAllReduce', (group, tensor) => ringAllReduce(tensor, group)],
    ['broadcast', (group, tensor) => broadcast(tensor, group)],
    ['broadcastFrom', (group, tensor) => broadcastFrom(tensor, 0, group)],
    ['allGather', (group, tensor) => allGather(tensor, group)],
    ['reduceScatterSum', (group, tensor) => reduceScatterSum(tensor, group)],
    ['reduceScatterMean', (group, tensor) => reduceScatterMean(tensor, group)],
    ['reduceTo', (group, tensor) => reduceTo(tensor, 0, group)],
    ['gatherTo', (group, tensor) => gatherTo(tensor, 0, group)],
    ['scatterFrom', (group, tensor) => scatterFrom(tensor, 0, group)],
    ['allToAll', (group, tensor) => allToAll(tensor, group)],
    ['scatterTensor', (group, tensor) => scatterTensor(tensor, 0, group)],
    ['gatherTensor', (group, tensor) => gatherTensor(tensor, 0, group)],
    [
      'sendTensor and recvTensor',
      (group, tensor) => (group.rank === 0 ? sendTensor(tensor, 1, group) : recvTensor(tensor, 0, group)),
    ],
    ['syncGradient', (group, tensor) => syncGradient(tensor, group)],
    ['syncGradients', (group, tensor) => syncGradients([tensor], group)],
  ];

  test.each(calls)('%s refuses a tensor that requires grad, except inside noGrad', async (_name, call) => {
    await onRanks(2, async (group) => {
      const leaf = Tensor.from([1, 2], [2], { requiresGrad: true });
      const error = await rejectionOf(call(group, leaf));
      expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { group: 'world', rank: group.rank } });
      expect(error.message).toMatch(/requires grad.*Call it inside noGrad\(\)/);
      await noGrad(() => call(group, leaf));
    });
  });

  test.each(calls)('%s rejects on a rank outside the group', async (_name, call) => {
    await onRanks(3, async (world) => {
      const group = await world.newGroup([0, 1]);
      if (group.isMember) return;
      const error = await rejectionOf(call(group, Tensor.from([1, 2])));
      expect(error).toMatchObject({ name: 'NotInGroupError' });
      expect(error.message).toContain('group world/0 (its members are the global ranks 0, 1)');
    });
  });

  test.each(calls.filter(([name]) => name !== 'scatterTensor'))('%s rejects after close', async (_name, call) => {
    const group = ProcessGroup.mock();
    await group.close();
    expect(await rejectionOf(call(group, Tensor.from([1, 2])))).toMatchObject({ name: 'ClosedError' });
  });

  test.each([
    ['reduceScatterSum', (group: ProcessGroup) => reduceScatterSum(Tensor.zeros([4, 2]), group)],
    ['allToAll', (group: ProcessGroup) => allToAll(Tensor.zeros([4, 2]), group)],
    ['scatterFrom', (group: ProcessGroup) => scatterFrom(Tensor.zeros([4, 2]), 1, group)],
    ['scatterTensor', (group: ProcessGroup) => scatterTensor(Tensor.zeros([4, 2]), 0, group)],
  ] as const)('%s says the sizes that do not divide, on every rank', async (_name, call) => {
    await onRanks(3, async (group) => {
      const error = await rejectionOf(call(group));
      expect(error).toMatchObject({ name: 'InvalidArgumentError' });
      expect(error.message).toMatch(
        /dimension 0 of shape \[4, 2\] has size 4, which does not divide into 3 equal parts.*Pad it to 6/,
      );
      await barrier(group);
    });
  });

  test('unequal slices are a mismatch that says what each rank called', async () => {
    await onRanks(2, async (group) => {
      const error = await rejectionOf(gatherTensor(Tensor.zeros([group.rank + 1, 2]), 0, group));
      expect(error).toMatchObject({ name: 'CollectiveMismatchError' });
      expect(error.message).toMatch(
        /rank 0: allGather\(float32\[1, 2\] per rank\).*rank 1: allGather\(float32\[2, 2\] per rank\)/s,
      );
    });
  });

  test('a peer that receives another size is a mismatch on both', async () => {
    await onRanks(2, async (group) => {
      const tensor = Tensor.zeros([group.rank + 2]);
      const error = await rejectionOf(group.rank === 0 ? sendTensor(tensor, 1, group) : recvTensor(tensor, 0, group));
      expect(error).toMatchObject({ name: 'CollectiveMismatchError' });
      expect(error.message).toMatch(/float32\[2\].*float32\[3\]/s);
    });
  });

  test('a tensor that was disposed of', async () => {
    const group = ProcessGroup.mock();
    const tensor = Tensor.from([1]);
    tensor.dispose();
    expect(await rejectionOf(allReduceSum(tensor, group))).toMatchObject({ name: 'InvalidArgumentError' });
    await group.close();
  });
});

test('tensors of as many elements but another shape are a mismatch, not a silent sum', async () => {
  const run = runWorld(2, async (world) => {
    await allReduceSum(Tensor.zeros(world.rank === 0 ? [2, 3] : [3, 2]), world.group);
  });
  await expect(run).rejects.toThrow(
    /rank 0: allReduce\(float32\[2, 3\], Sum\).*rank 1: allReduce\(float32\[3, 2\], Sum\)/s,
  );
});

test('a backward that has saved a tensor is refused after a collective has changed it', async () => {
  await runWorld(2, async (world) => {
    const input = Tensor.from([1 + world.rank]);
    const loss = input.mul(Tensor.from([2], [1], { requiresGrad: true })).sum();
    await allReduceSum(input, world.group);
    await expect(loss.backward()).rejects.toThrow("a tensor that 'mul' saved was changed in place since");
  });
});

describe('JavaScript callers', () => {
  const tensor = Tensor.ones([1]);

  test.each<[string, () => PromiseLike<unknown>]>([
    ['allReduceSum', () => allReduceSum(tensor, undefined as never)],
    ['allGather', () => allGather(tensor, undefined as never)],
    ['gatherTensor', () => gatherTensor(tensor, 0, undefined as never)],
    ['barrier', () => barrier(undefined as never)],
  ])('%s without a group rejects and says what to pass', async (name, call) => {
    const error = await rejectionOf(call());
    expect(error.message).toBe(
      `${name}: expected a ProcessGroup as the argument 'group', got undefined. Pass world.group, or a group made by newGroup() (and await that).`,
    );
  });

  test('a world in the place of a group is recognised', async () => {
    await runWorld(1, async (world) => {
      expect((await rejectionOf(allReduceSum(tensor, world as never))).message).toContain(
        'got a World. Pass world.group.',
      );
      expect(() => rank(world as never)).toThrow('Pass world.group.');
    });
  });

  test('a bare number in the place of options is refused, since it is no tag', async () => {
    const group = ProcessGroup.mock();
    expect((await rejectionOf(sendTensor(tensor, 0, group, 1 as never))).message).toContain(
      'sendTensor: expected options { tag, timeoutMs }, got 1',
    );
  });
});
