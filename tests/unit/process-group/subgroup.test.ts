import fc from 'fast-check';
import { ReduceOp } from '../../../src/core/reduce-op';
import { firstFailureIn } from '../../../src/process-group/group-channel';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { holdsAsync } from '../../helpers/property';
import { WORLD_SIZES, onRanks, rejectionOf } from './worlds';

/** The sum over a group, of 2 to the power of each member's global rank: says who took part, each once. */
async function membersBySum(group: ProcessGroup, globalRank: number): Promise<number> {
  const tensor = Tensor.from([2 ** globalRank]);
  await group.allReduce(tensor, ReduceOp.Sum);
  return tensor.item();
}

function sumOf(globalRanks: readonly number[]): number {
  return globalRanks.reduce((sum, rank) => sum + 2 ** rank, 0);
}

describe('newGroup', () => {
  test('sorts the ranks, and counts the members from 0', async () => {
    await onRanks(4, async (world) => {
      const group = await world.newGroup([3, 1]);
      expect(group.ranks).toEqual([1, 3]);
      expect(group.size).toBe(2);
      expect(group.worldSize).toBe(4);
      expect(group.rank).toBe({ 1: 0, 3: 1 }[world.rank] ?? -1);
      expect(group.isMember).toBe(world.rank === 1 || world.rank === 3);
      expect([0, 1, 2, 3].filter((rank) => group.contains(rank))).toEqual([1, 3]);
      if (group.isMember) expect(await membersBySum(group, world.rank)).toBe(sumOf([1, 3]));
    });
  });

  test('on a rank outside it gives a group whose calls all reject with NotInGroupError', async () => {
    await onRanks(3, async (world) => {
      const group = await world.newGroup([0, 2]);
      if (world.rank !== 1) return;
      const tensor = Tensor.zeros([2]);
      const calls: readonly (() => PromiseLike<unknown>)[] = [
        () => group.allReduce(tensor),
        () => group.broadcast(tensor, 0),
        () => group.reduce(tensor, 0),
        () => group.allGather(tensor),
        () => group.reduceScatter(tensor),
        () => group.gather(tensor, 0),
        () => group.scatter(tensor, 0),
        () => group.allToAll(tensor),
        () => group.send(tensor, 0),
        () => group.recv(tensor, 0),
        () => group.batch([]),
        () => group.barrier(),
        () => group.monitoredBarrier(),
        () => group.broadcastObject(1),
        () => group.allGatherObjects(1),
        () => group.gatherObjects(1),
        () => group.scatterObjects([1, 2]),
        () => group.newGroup([0]),
        () => group.split(0),
      ];
      for (const call of calls) {
        const error = await rejectionOf(call());
        expect(error).toMatchObject({ name: 'NotInGroupError', code: 'LOCKSTEP_NOT_IN_GROUP' });
        expect(error.message).toMatch(/this rank is not in group world\/0 \(its members are the global ranks 0, 2\)/);
      }
      expect(() => group.backend).toThrow('this rank is not in group world/0');
      group.abort(new Error('nothing to end here'));
      await group.close();
      await group.close();
    });
  });

  test('nested groups take ranks of their parent, and map to global ranks', async () => {
    await onRanks(7, async (world) => {
      const odd = await world.newGroup([1, 3, 5]);
      if (!odd.isMember) return;
      const last = await odd.newGroup([2, 1]);
      expect(last.ranks).toEqual([3, 5]);
      if (!last.isMember) return;
      const one = await last.newGroup([1]);
      expect(one.ranks).toEqual([5]);
      expect(one.worldSize).toBe(7);
      expect(await membersBySum(last, world.rank)).toBe(sumOf([3, 5]));
      expect(one.isMember).toBe(world.rank === 5);
    });
  });

  test('roots and peers are ranks of the group, not of the world', async () => {
    await onRanks(4, async (world) => {
      const group = await world.newGroup([2, 3]);
      if (!group.isMember) return;
      const tensor = Tensor.from([world.rank]);
      await group.broadcast(tensor, 1);
      expect(tensor.item()).toBe(3);
      expect(await group.broadcastObject(world.rank, 0)).toBe(2);
      const error = await rejectionOf(group.broadcast(tensor, 2));
      expect(error.message).toMatch(/src: expected a rank of this group, 0 to 1, got 2/);
      const named = await rejectionOf(group.broadcastObject('x', 3));
      expect(named.message).toBe(
        `broadcastObject on rank ${group.rank} (global rank ${group.ranks[group.rank]}) of group world/0: src is 3, expected a rank of the group, 0 to 1 (not a rank of the world).`,
      );
      if (group.rank === 0) await group.send(Tensor.from([41]), 1);
      else {
        await group.recv(tensor, 0);
        expect(tensor.item()).toBe(41);
      }
    });
  });

  const badLists: readonly (readonly [string, unknown, string])[] = [
    ['a rank that does not exist', [0, 2], 'there is no rank 2 in a group of 2'],
    ['a negative rank', [-1], 'there is no rank -1 in a group of 2'],
    ['a rank that is listed twice', [1, 0, 1], 'rank 1 is listed twice'],
    ['an empty list', [], 'expected at least one rank, got an empty list'],
    ['fractions', [0.5], 'expected whole numbers, got 0.5'],
    ['strings', ['0'], 'expected whole numbers, got a value of type string'],
    ['no list', 1, 'expected an array of ranks, got a value of type number'],
    ['nothing', undefined, 'expected an array of ranks, got a value of type undefined'],
  ];

  test.each(badLists)(
    'refuses %s before anything is sent, on every rank, and the group lives on',
    async (_name, ranks, problem) => {
      await onRanks(2, async (world) => {
        const error = await rejectionOf(world.newGroup(ranks as number[]));
        expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { op: 'newGroup', group: 'world' } });
        expect(error.message).toBe(
          `newGroup on rank ${world.rank} of group world: ${problem}. Pass ranks of the group that it is called on (0 to 1), each once, the same list on every rank.`,
        );
        expect(await membersBySum(world, world.rank)).toBe(3);
        expect((await world.newGroup([0, 1])).name).toBe('world/0');
      });
    },
  );

  test('[0, 1] in a world of one is refused', async () => {
    await onRanks(1, async (world) => {
      expect((await rejectionOf(world.newGroup([0, 1]))).message).toContain('there is no rank 1 in a group of 1');
    });
  });

  test('lists that differ between ranks end the group, and the error says what each asked for', async () => {
    const errors = await onRanks(3, (world) => rejectionOf(world.newGroup(world.rank === 1 ? [2, 1] : [0, 1])));
    for (const error of errors) {
      const failure = firstFailureIn(error); // rank 2 calls after the others have found out
      expect(failure).toMatchObject({ name: 'CollectiveMismatchError' });
      expect(failure?.message).toMatch(/rank 0: split\(\[0, 1\]\).*rank 1: split\(\[1, 2\]\)/s);
    }
  });

  test('the same list in another order is the same group', async () => {
    await onRanks(3, async (world) => {
      const group = await world.newGroup(world.rank === 0 ? [0, 1, 2] : [2, 0, 1]);
      expect(group.rank).toBe(world.rank);
    });
  });
});

describe('collectives of different groups in flight together do not mix', () => {
  test.each(['fifo', 'random'] as const)('disjoint, overlapping and nested groups (%s schedule)', async (schedule) => {
    await onRanks(
      4,
      async (world) => {
        const lists = [[0, 1], [2, 3], [1, 2], [0, 3], [0, 1, 2], [3]];
        const groups = [];
        for (const list of lists) groups.push(await world.newGroup(list));
        const low = groups[4] as ProcessGroup;
        if (low.isMember) {
          groups.push(await low.newGroup([0, 2]));
          lists.push([0, 2]);
        }
        const all = [world, ...groups];
        const expected = [[0, 1, 2, 3], ...lists];
        const sums = all.map(async (group) => (group.isMember ? membersBySum(group, world.rank) : undefined));
        const found = await Promise.all(sums);
        expect(found).toEqual(expected.map((list) => (list.includes(world.rank) ? sumOf(list) : undefined)));
      },
      { schedule, seed: 11 },
    );
  });

  test('groups with the same ranks are different groups', async () => {
    await onRanks(2, async (world) => {
      const [a, b] = [await world.newGroup([0, 1]), await world.newGroup([0, 1])];
      const [x, y] = [Tensor.from([1]), Tensor.from([10])];
      // Each rank starts with another group: were they one group, this would be two mixed sums.
      const works = world.rank === 0 ? [a.allReduce(x), b.allReduce(y)] : [b.allReduce(y), a.allReduce(x)];
      await Promise.all(works);
      expect([x.item(), y.item()]).toEqual([2, 20]);
      expect([a.name, b.name]).toEqual(['world/0', 'world/1']);
    });
  });

  test('a failure ends its own group only', async () => {
    await onRanks(3, async (world) => {
      const pair = await world.newGroup([0, 1]);
      if (pair.isMember) {
        const error = await rejectionOf(pair.allReduce(Tensor.zeros([pair.rank + 1])));
        expect(error).toMatchObject({ name: 'CollectiveMismatchError', context: { group: 'world/0' } });
      }
      expect(await membersBySum(world, world.rank)).toBe(7);
    });
  });
});

describe('split', () => {
  test('ranks of one color are together, in the order of their keys', async () => {
    await onRanks(4, async (world) => {
      const group = await world.split(world.rank % 2, -world.rank);
      expect(group.ranks).toEqual(world.rank % 2 === 0 ? [2, 0] : [3, 1]);
      expect(group.rank).toBe(world.rank < 2 ? 1 : 0);
      expect(await membersBySum(group, world.rank)).toBe(world.rank % 2 === 0 ? 5 : 10);
    });
  });

  test('a rank without a color is in no group', async () => {
    await onRanks(3, async (world) => {
      const group = await world.split(world.rank === 1 ? undefined : 5);
      if (world.rank !== 1) return expect(group.ranks).toEqual([0, 2]);
      expect([group.rank, group.size, group.isMember, group.ranks]).toEqual([-1, 0, false, []]);
      expect((await rejectionOf(group.barrier())).message).toContain('not in group world/none (it has no ranks)');
    });
  });

  test('no colors at all', async () => {
    await onRanks(2, async (world) => expect((await world.split(undefined)).rank).toBe(-1));
  });

  test('bad colors and keys are refused', async () => {
    await onRanks(2, async (world) => {
      const color = await rejectionOf(world.split(1.5));
      expect(color).toMatchObject({ name: 'InvalidArgumentError' });
      expect(color.message).toContain(
        `split on rank ${world.rank} of group world: color is 1.5, expected a whole number`,
      );
      expect((await rejectionOf(world.split(0, Infinity))).message).toContain(
        'key is Infinity, expected a whole number',
      );
      await world.barrier();
    });
  });

  test('gives what sorting by key and rank within each color gives, and the same names on all ranks', async () => {
    const choice = fc.record({
      color: fc.option(fc.integer({ min: -2, max: 3 }), { nil: undefined }),
      key: fc.integer({ min: -2, max: 2 }),
    });
    const choices = fc
      .constantFrom(...WORLD_SIZES)
      .chain((size) => fc.array(choice, { minLength: size, maxLength: size }));
    await holdsAsync(
      'split',
      fc.asyncProperty(choices, async (chosen) => {
        const seen = await onRanks(chosen.length, async (world) => {
          const { color, key } = chosen[world.rank] as (typeof chosen)[number];
          const group = await world.split(color, key);
          const sum = group.isMember ? await membersBySum(group, world.rank) : 0;
          return { ranks: group.ranks, rank: group.rank, sum, name: group.name };
        });
        chosen.forEach(({ color }, me) => {
          const members = chosen
            .map((other, rank) => ({ ...other, rank }))
            .filter((other) => color !== undefined && other.color === color)
            .sort((a, b) => a.key - b.key || a.rank - b.rank)
            .map((other) => other.rank);
          const mine = seen[me];
          expect(mine).toMatchObject({ ranks: members, rank: members.indexOf(me), sum: sumOf(members) });
          for (const member of members) expect(seen[member]?.name).toBe(mine?.name);
        });
      }),
      { short: 40, long: 500 },
    );
  });
});
