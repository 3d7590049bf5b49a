import fc from 'fast-check';
import { ReduceOp } from '../../../src/core/reduce-op';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { holdsAsync } from '../../helpers/property';
import { onRanks, rejectionOf } from './worlds';

/** A call whose result says whether it met the same call of the other ranks; `index` tells calls of a program apart. */
type Call = (group: ProcessGroup, index: number) => Promise<void>;

const SIZE = 3;
const RANKS = [0, 1, 2];

const calls: Readonly<Record<string, Call>> = {
  allReduce: async (group, index) => {
    const tensor = Tensor.from([index, group.rank]);
    await group.allReduce(tensor, ReduceOp.Sum);
    expect(tensor.toArray()).toEqual([index * SIZE, 3]);
  },
  allGather: async (group, index) => {
    const gathered = await group.allGather(Tensor.from([index, group.rank]));
    expect(gathered.toArray()).toEqual(RANKS.map((rank) => [index, rank]));
  },
  allGatherObjects: async (group, index) => {
    expect(await group.allGatherObjects([index, group.rank])).toEqual(RANKS.map((rank) => [index, rank]));
  },
  broadcastObject: async (group, index) => {
    expect(await group.broadcastObject(group.rank === 2 ? { index } : undefined, 2)).toEqual({ index });
  },
  scatterObjects: async (group, index) => {
    const values = group.rank === 0 ? RANKS.map((rank) => [index, rank]) : undefined;
    expect(await group.scatterObjects(values)).toEqual([index, group.rank]);
  },
  scatter: async (group, index) => {
    const whole = group.rank === 1 ? Tensor.from(RANKS.map((rank) => [index, rank])) : undefined;
    expect((await group.scatter(whole, 1)).toArray()).toEqual([[index, group.rank]]);
  },
  newGroup: async (group) => {
    const made = await group.newGroup([0, 2]);
    expect(await namesOf(group)).toEqual(RANKS.map(() => made.name));
    if (made.isMember) expect((made.backend as { groupId?: string }).groupId).toBe(made.name);

    /** After the program: by then the groups have been made, so that this comes in the same order on all ranks. */
    async function namesOf(parent: ProcessGroup): Promise<unknown> {
      return parent.allGatherObjects(made.name);
    }
  },
  split: async (group, index) => {
    const made = await group.split(group.rank === index % SIZE ? 1 : 0);
    expect(made.ranks).toEqual(RANKS.filter((rank) => (rank === index % SIZE) === (group.rank === index % SIZE)));
  },
  refused: async (group) => {
    expect(await rejectionOf(group.newGroup([7]))).toMatchObject({ name: 'InvalidArgumentError' });
  },
};

test('calls that are not awaited are still made in the order in which they were written, on every rank', async () => {
  const programs = fc.record({
    program: fc.array(fc.constantFrom(...Object.keys(calls)), { minLength: 1, maxLength: 8 }),
    seed: fc.nat(1000),
    schedule: fc.constantFrom('fifo' as const, 'random' as const),
  });
  await holdsAsync(
    'calls in flight together',
    fc.asyncProperty(programs, async ({ program, ...options }) => {
      await onRanks(
        SIZE,
        async (group) => {
          await Promise.all(program.map((name, index) => (calls[name] as Call)(group, index)));
        },
        options,
      );
    }),
    { short: 100, long: 3000 },
  );
});
