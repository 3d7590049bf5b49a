import { inspect } from 'node:util';
import { MockBackend } from '../../../src/backend/registry';
import { DTYPES, type HostBuffer } from '../../../src/core/dtype';
import { ReduceOp } from '../../../src/core/reduce-op';
import { Work } from '../../../src/core/work';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { filled } from '../../helpers/fill';
import { WORLD_SIZES, onRanks } from './worlds';

/** [3, 2], with a value that says which rank and element it is. */
function ofRank(rank: number): Tensor {
  return Tensor.from(
    [0, 1, 2, 3, 4, 5].map((i) => rank * 10 + i),
    [3, 2],
  );
}

function valuesOf(rank: number): number[] {
  return [0, 1, 2, 3, 4, 5].map((i) => rank * 10 + i);
}

/** Bits, for 16-bit floats. */
function elementsOf(buffer: HostBuffer): (number | bigint)[] {
  return Array.from<number | bigint>(buffer as Iterable<number | bigint> & ArrayLike<number | bigint>);
}

function ranksOf(size: number): number[] {
  return Array.from({ length: size }, (_unused, rank) => rank);
}

describe('identity', () => {
  test('a group of all ranks of a backend', () => {
    const backends = MockBackend.createWorld(4);
    const groups = backends.map((backend) => new ProcessGroup(backend));
    groups.forEach((group, rank) => {
      expect(group.rank).toBe(rank);
      expect(group.size).toBe(4);
      expect(group.worldSize).toBe(4);
      expect(group.ranks).toEqual([0, 1, 2, 3]);
      expect(group.isMember).toBe(true);
      expect(group.backend).toBe(backends[rank]);
      expect(group.contains(3)).toBe(true);
      expect(group.contains(4)).toBe(false);
    });
  });

  test('ProcessGroup.mock() is a group of one', async () => {
    const group = ProcessGroup.mock();
    expect([group.rank, group.size, group.worldSize, group.ranks]).toEqual([0, 1, 1, [0]]);
    await group.close();
  });

  test('its name is the one that its backend puts into errors', async () => {
    await onRanks(2, async (group) => {
      const work = group.barrier();
      expect(work.info.group).toBe(group.name);
      await work;
      const pair = await group.newGroup([0, 1]);
      const one = await pair.split(pair.rank);
      for (const made of [pair, one]) {
        const inner = made.barrier();
        expect(inner.info.group).toBe(made.name);
        await inner;
      }
      expect(one.name).not.toBe(pair.name);
    });
  });

  test('inspect says what it is', async () => {
    await onRanks(2, async (group) => {
      expect(inspect(group)).toBe(`ProcessGroup <world, rank ${group.rank} of 2, mock>`);
      const sub = await group.newGroup([1]);
      expect(inspect(sub)).toContain(
        group.rank === 1 ? 'rank 0 of 1, global ranks [1], mock' : 'not a member, ranks [1]',
      );
    });
  });
});

describe.each(WORLD_SIZES)('tensor forms on %i ranks', (size) => {
  test('allReduce works in place, on every rank', async () => {
    await onRanks(size, async (group) => {
      const tensor = ofRank(group.rank);
      await group.allReduce(tensor, ReduceOp.Sum);
      const rankSum = (size * (size - 1)) / 2;
      expect(tensor.toArray()).toEqual(
        [0, 1, 2].map((row) => [0, 1].map((col) => rankSum * 10 + size * (row * 2 + col))),
      );
    });
  });

  test('broadcast copies from any root', async () => {
    await onRanks(size, async (group) => {
      for (const src of ranksOf(size)) {
        const tensor = ofRank(group.rank);
        await group.broadcast(tensor, src);
        expect(Array.from(tensor.data, Number)).toEqual(valuesOf(src));
      }
    });
  });

  test('allGather stacks in rank order: [size, ...shape]; a number gives [size]', async () => {
    await onRanks(size, async (group) => {
      const gathered = await group.allGather(ofRank(group.rank));
      expect(gathered.shape).toEqual([size, 3, 2]);
      expect(Array.from(gathered.data, Number)).toEqual(ranksOf(size).flatMap(valuesOf));
      const numbers = await group.allGather(Tensor.from(group.rank));
      expect(numbers.shape).toEqual([size]);
      expect(numbers.toArray()).toEqual(ranksOf(size));
    });
  });

  test('reduceScatter sums and keeps this rank`s part of dimension 0', async () => {
    await onRanks(size, async (group) => {
      const whole = Tensor.from(
        ranksOf(size * 4).map((i) => i + group.rank),
        [size * 2, 2],
      );
      const part = await group.reduceScatter(whole, ReduceOp.Sum);
      expect(part.shape).toEqual([2, 2]);
      const rankSum = (size * (size - 1)) / 2;
      expect(Array.from(part.data, Number)).toEqual([0, 1, 2, 3].map((i) => (group.rank * 4 + i) * size + rankSum));
    });
  });

  test('reduceScatterInto and allGatherInto work in memory that is there, this rank`s part included', async () => {
    await onRanks(size, async (group) => {
      const whole = Tensor.from(ranksOf(size * 2).map((i) => i + group.rank));
      const { storage } = whole;
      const part = new Tensor({ storage: storage.view(2 * group.rank, 2), shape: [2] });
      await group.reduceScatterInto(part, whole, ReduceOp.Sum);
      const sums = ranksOf(size * 2).map((i) => i * size + (size * (size - 1)) / 2);
      expect(part.toArray()).toEqual(sums.slice(2 * group.rank, 2 * group.rank + 2));
      await group.allGatherInto(whole, part);
      expect(whole.toArray()).toEqual(sums);
      if (size > 1) await expect(group.allGatherInto(part, whole)).rejects.toThrow(/allGather/);
    });
  });

  test('reduce writes on the destination only', async () => {
    await onRanks(size, async (group) => {
      const dst = size - 1;
      const tensor = ofRank(group.rank);
      await group.reduce(tensor, dst, ReduceOp.Max);
      expect(Array.from(tensor.data, Number)).toEqual(valuesOf(group.rank === dst ? size - 1 : group.rank));
    });
  });

  test('gather gives a tensor on the destination only', async () => {
    await onRanks(size, async (group) => {
      for (const dst of ranksOf(size)) {
        const gathered = await group.gather(ofRank(group.rank), dst);
        if (group.rank !== dst) expect(gathered).toBeUndefined();
        else expect(Array.from((gathered as Tensor).data, Number)).toEqual(ranksOf(size).flatMap(valuesOf));
      }
    });
  });

  test('scatter tells the others shape and dtype', async () => {
    await onRanks(size, async (group) => {
      const src = size - 1;
      const whole = Tensor.from(Int32Array.from(ranksOf(size * 6)), [size * 3, 2]);
      const part = await group.scatter(group.rank === src ? whole : undefined, src);
      expect(part.dtype).toBe('int32');
      expect(part.shape).toEqual([3, 2]);
      expect(Array.from(part.data, Number)).toEqual([0, 1, 2, 3, 4, 5].map((i) => group.rank * 6 + i));
    });
  });

  test('allToAll sends part j to rank j', async () => {
    await onRanks(size, async (group) => {
      const sent = Tensor.from(
        ranksOf(size).flatMap((to) => [group.rank * 100 + to, to]),
        [size, 2],
      );
      const received = await group.allToAll(sent);
      expect(received.toArray()).toEqual(ranksOf(size).map((from) => [from * 100 + group.rank, group.rank]));
    });
  });

  test('send, recv and batch pass a tensor round the ring', async () => {
    if (size === 1) return;
    await onRanks(size, async (group) => {
      const next = (group.rank + 1) % size;
      const previous = (group.rank + size - 1) % size;
      const received = Tensor.zeros([3, 2]);
      await Promise.all([group.send(ofRank(group.rank), next, 7), group.recv(received, previous, 7)]);
      expect(Array.from(received.data, Number)).toEqual(valuesOf(previous));
      const target = Tensor.zeros([3, 2]);
      await group.batch([
        { op: 'send', data: received, peer: next },
        { op: 'recv', data: target, peer: previous },
      ]);
      expect(Array.from(target.data, Number)).toEqual(valuesOf((group.rank + 2 * size - 2) % size));
    });
  });

  test('every dtype and length, 0 too, comes back as it went', async () => {
    await onRanks(size, async (group) => {
      for (const dtype of DTYPES) {
        for (const length of [0, 1, size + 1]) {
          const tensor = Tensor.wrap(filled(dtype, length, size, group.rank));
          const gathered = await group.allGather(tensor);
          expect(gathered.dtype).toBe(dtype);
          expect(gathered.shape).toEqual([size, length]);
          const mine = gathered.slice(0, group.rank, group.rank + 1);
          expect(elementsOf(mine.data)).toEqual(elementsOf(tensor.data));
          await group.allReduce(tensor, ReduceOp.Max);
          const last = filled(dtype, length, size, size - 1);
          expect(elementsOf(tensor.data)).toEqual(elementsOf(last));
        }
      }
    });
  });
});

describe('a group of one', () => {
  test('returns its input for every reduce op', async () => {
    const group = ProcessGroup.mock();
    for (const op of Object.values(ReduceOp)) {
      const tensor = Tensor.from([3, -1, 7], [3], { dtype: 'int32' });
      await group.allReduce(tensor, op);
      expect(tensor.toArray()).toEqual([3, -1, 7]);
      expect((await group.reduceScatter(tensor, op)).toArray()).toEqual([3, -1, 7]);
    }
    await group.close();
  });
});

describe('handles', () => {
  test('a call in place returns a Work, which waits for the others', async () => {
    const [first, second] = MockBackend.createWorld(2).map((backend) => new ProcessGroup(backend)) as [
      ProcessGroup,
      ProcessGroup,
    ];
    const tensor = Tensor.from([1, 2]);
    const work = first.allReduce(tensor);
    expect(work).toBeInstanceOf(Work);
    expect(work.isCompleted).toBe(false);
    await Promise.all([second.allReduce(Tensor.from([10, 20])), work]);
    expect(work.isCompleted).toBe(true);
    expect(tensor.toArray()).toEqual([11, 22]);
    await Promise.all([first.close(), second.close()]);
  });

  test('collectives in flight together keep their order', async () => {
    await onRanks(3, async (group) => {
      const tensors = [1, 2, 3, 4].map((factor) => Tensor.from([factor * (group.rank + 1)]));
      const works = tensors.map((tensor) => group.allReduce(tensor));
      await Promise.all(works);
      expect(tensors.map((tensor) => tensor.item())).toEqual([6, 12, 18, 24]);
    });
  });

  test('NaN propagates through Min and Max from either side', async () => {
    await onRanks(2, async (group) => {
      for (const op of [ReduceOp.Min, ReduceOp.Max]) {
        const tensor = Tensor.from(group.rank === 0 ? [NaN, 1, 5] : [2, NaN, 6]);
        await group.allReduce(tensor, op);
        expect(tensor.toArray()).toEqual([NaN, NaN, op === ReduceOp.Min ? 5 : 6]);
      }
    });
  });
});
