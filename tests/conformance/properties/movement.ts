import { DTYPES, type DType } from '../../../src/core/dtype';
import { UNTOUCHED } from '../../helpers/fill';
import { storedValue } from '../../helpers/reduction';
import { expectedFill, type Value } from '../expected';
import { expectEqual, expectValues } from '../expectations';
import { countsFor, LARGE_COUNT, type Property } from '../property';

const part = (size: number, dtype: DType, rank: number, start: number, length: number): Value[] =>
  expectedFill(size, dtype, 'counted', rank, start, length);

const ranksOf = (size: number): number[] => Array.from({ length: size }, (_unused, rank) => rank);
const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

/** What rank j gets of each rank: row i is what rank i sends to the ranks in order. */
function exchanged(size: number, dtype: DType, parts: readonly (readonly number[])[], receiver: number): Value[] {
  return ranksOf(size).flatMap((sender) => {
    const row = parts[sender] as readonly number[];
    return part(size, dtype, sender, sum(row.slice(0, receiver)), row[receiver] as number);
  });
}

/** Each dtype at each count; roots go round, so that every root meets every count. */
function rootedCases(size: number): { dtype: DType; count: number; root: number; inPlace: boolean }[] {
  return DTYPES.flatMap((dtype) =>
    [...countsFor(size), 13].flatMap((count) =>
      ranksOf(size).map((root) => ({ dtype, count, root, inPlace: (count + root) % 2 === 0 })),
    ),
  );
}

export const movementProperties: readonly Property[] = [
  {
    title: 'broadcast gives every rank what the source has: every source, dtype and count',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const large = { dtype: 'float32' as const, count: LARGE_COUNT, root: size - 1 };
        const cases = [...worlds.sampleOf(rootedCases(size), size), ...(size === 3 ? [large] : [])];
        const byRank = await worlds.results(size, 'broadcast', { cases });
        cases.forEach(({ dtype, count, root }, index) => {
          const want = part(size, dtype, root, 0, count);
          byRank.forEach((results, rank) => {
            expectValues(`broadcast of ${count} ${dtype} from ${root} of ${size}, rank ${rank}`, results[index], want);
          });
        });
      }
    },
  },
  {
    title: 'allGather gives every rank all parts in rank order, in place or not, and leaves what was sent alone',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const cases = DTYPES.flatMap((dtype) =>
          countsFor(size).flatMap((count) => [true, false].map((inPlace) => ({ dtype, count, inPlace }))),
        );
        const byRank = await worlds.results(size, 'allGather', { cases });
        cases.forEach(({ dtype, count, inPlace }, index) => {
          const want = ranksOf(size).flatMap((rank) => part(size, dtype, rank, 0, count));
          byRank.forEach((results, rank) => {
            const where = `allGather of ${count} ${dtype}${inPlace ? ' in place' : ''} on ${size} ranks, rank ${rank}`;
            expectValues(where, results[index]?.recv, want);
            expectValues(`${where}: sent`, results[index]?.send, part(size, dtype, rank, 0, count));
          });
        });
      }
    },
  },
  {
    title: 'allGather takes unequal counts, zeros among them',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const shapes = [ranksOf(size).map((rank) => rank + 1), ranksOf(size).map((rank) => (rank % 2 === 0 ? 0 : 5))];
        const cases = shapes.flatMap((counts) =>
          DTYPES.flatMap((dtype) => [true, false].map((inPlace) => ({ dtype, count: 0, counts, inPlace }))),
        );
        const byRank = await worlds.results(size, 'allGather', { cases });
        cases.forEach(({ dtype, counts }, index) => {
          const want = ranksOf(size).flatMap((rank) => part(size, dtype, rank, 0, counts[rank] as number));
          byRank.forEach((results, rank) => {
            expectValues(`allGather of counts [${counts.join()}], ${dtype}, rank ${rank}`, results[index]?.recv, want);
          });
        });
      }
    },
  },
  {
    title: 'gather gives the destination all parts in rank order, and leaves what was sent alone: every destination',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const cases = worlds.sampleOf(rootedCases(size), size);
        const byRank = await worlds.results(size, 'gather', { cases });
        cases.forEach(({ dtype, count, root }, index) => {
          const want = ranksOf(size).flatMap((rank) => part(size, dtype, rank, 0, count));
          byRank.forEach((results, rank) => {
            const where = `gather of ${count} ${dtype} to ${root} of ${size}, rank ${rank}`;
            if (rank === root) expectValues(where, results[index]?.recv, want);
            expectValues(`${where}: sent`, results[index]?.send, part(size, dtype, rank, 0, count));
          });
        });
      }
    },
  },
  {
    title: 'scatter gives each rank its part, and leaves what the source sent alone: every source',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const cases = worlds.sampleOf(rootedCases(size), size);
        const byRank = await worlds.results(size, 'scatter', { cases });
        cases.forEach(({ dtype, count, root }, index) => {
          byRank.forEach((results, rank) => {
            const where = `scatter of ${count} ${dtype} from ${root} of ${size}, rank ${rank}`;
            expectValues(where, results[index]?.recv, part(size, dtype, root, rank * count, count));
            if (rank === root)
              expectValues(`${where}: sent`, results[index]?.send, part(size, dtype, root, 0, size * count));
          });
        });
      }
    },
  },
  {
    title: 'allToAll gives rank j the j-th part of every rank, and leaves what was sent alone',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const cases = DTYPES.flatMap((dtype) => countsFor(size).map((count) => ({ dtype, count })));
        const byRank = await worlds.results(size, 'allToAll', { cases });
        cases.forEach(({ dtype, count }, index) => {
          const parts = ranksOf(size).map(() => ranksOf(size).map(() => count));
          byRank.forEach((results, rank) => {
            const where = `allToAll of ${count} ${dtype} on ${size} ranks, rank ${rank}`;
            expectValues(where, results[index]?.recv, exchanged(size, dtype, parts, rank));
            expectValues(`${where}: sent`, results[index]?.send, part(size, dtype, rank, 0, size * count));
          });
        });
      }
    },
  },
  {
    title: 'allToAll takes counts that differ for each pair of ranks, and leaves what they do not cover alone',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const shapes = [
          ranksOf(size).map((sender) => ranksOf(size).map((receiver) => (sender + 2 * receiver) % 4)),
          ranksOf(size).map((sender) =>
            ranksOf(size).map((receiver) => (sender === receiver ? 0 : 10 * sender + receiver)),
          ),
          ranksOf(size).map((sender) => ranksOf(size).map(() => (sender === 0 ? 7 : 0))),
        ];
        const cases = shapes.flatMap((parts) =>
          DTYPES.flatMap((dtype) => [0, 3].map((spare) => ({ dtype, count: 0, parts, spare }))),
        );
        const byRank = await worlds.results(size, 'allToAll', { cases });
        cases.forEach(({ dtype, parts, spare }, index) => {
          const left = new Array<Value>(spare).fill(storedValue(dtype, UNTOUCHED));
          byRank.forEach((results, rank) => {
            const where = `allToAll of counts ${JSON.stringify(parts)}, ${spare} spare, ${dtype}, rank ${rank}`;
            expectValues(where, results[index]?.recv, [...exchanged(size, dtype, parts, rank), ...left]);
          });
        });
      }
    },
  },
  {
    title: 'allToAll of counts [1, 3] and [2, 2] on two ranks gives what PyTorch gives',
    async check(worlds) {
      const parts = [
        [1, 3],
        [2, 2],
      ];
      const byRank = await worlds.results(2, 'allToAll', { cases: [{ dtype: 'int32', count: 0, parts }] });
      // Rank 0 sends 0, 2, 4, 6 and rank 1 sends 1, 3, 5, 7.
      expectValues('rank 0', byRank[0]?.[0]?.recv, [0, 1, 3]);
      expectValues('rank 1', byRank[1]?.[0]?.recv, [2, 4, 6, 5, 7]);
    },
  },
  {
    title: 'nobody leaves a barrier before all have come',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const byRank = await worlds.results(size, 'barrier', { rounds: 2 * size });
        const heard = byRank.flat();
        expectEqual(`ranks through on ${size} ranks`, heard, new Array<boolean>(2 * size * (size - 1)).fill(false));
      }
    },
  },
];
