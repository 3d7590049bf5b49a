import { DTYPES, isHalfDType, type DType } from '../../../src/core/dtype';
import { ReduceOp } from '../../../src/core/reduce-op';
import { count } from '../../helpers/counts';
import type { Fill } from '../../helpers/fill';
import { expectedFill, expectedMagnitude, expectedReduction } from '../expected';
import { expectSameBits, expectValues } from '../expectations';
import { countsFor, LARGE_COUNT, type Property, type Worlds } from '../property';
import type { Held, ReductionCase } from '../programs/reductions';
import type { WireBuffer } from '../wire-buffer';

/** Every reduce op that a dtype takes, on values that round; sums also on values that show a misplaced element. */
function reductions(
  worlds: Worlds,
  dtypes: readonly DType[] = worlds.capabilities.dtypes,
): Omit<ReductionCase, 'count'>[] {
  return dtypes.flatMap((dtype) =>
    worlds.capabilities.reduceOps
      .filter((op) => worlds.reduces(dtype, op))
      .flatMap((op) => [
        { dtype, op, fill: 'rounding' as const },
        ...(op === 'Sum' ? [{ dtype, op, fill: 'counted' as const }] : []),
      ]),
  );
}

/** Where integers have no average, what they have. */
const average = (worlds: Worlds, dtype: DType): ReduceOp =>
  worlds.reduces(dtype, ReduceOp.Average) ? ReduceOp.Average : ReduceOp.Sum;

const describeCase = (size: number, { dtype, op, count, fill }: ReductionCase): string =>
  `${op} of ${count} ${fill} ${dtype} on ${size} ranks`;

/** Reductions where rounding and order show are exact only where the backend promises rank order. */
function isExact({ capabilities }: Worlds, { fill, dtype }: { readonly fill: Fill; readonly dtype: DType }): boolean {
  // NCCL rounds to 16 bits at every step of a ring, where counted sums of several ranks no longer fit
  const roundsOnTheWay = capabilities.devices.includes('cuda') && isHalfDType(dtype);
  return capabilities.bitwise || (fill === 'counted' && !roundsOnTheWay);
}

/** That a buffer holds elements `start` to `start + length` of a reduction. */
function expectReduction(
  where: string,
  worlds: Worlds,
  got: WireBuffer | null | undefined,
  size: number,
  reduction: Omit<ReductionCase, 'count'>,
  [start, length]: readonly [number, number],
): void {
  const want = expectedReduction(size, reduction, start, length);
  if (isExact(worlds, reduction)) return expectValues(where, got, want);
  expectValues(where, got, want, expectedMagnitude(size, reduction, start, length));
}

async function checkAllReduce(worlds: Worlds, size: number, cases: readonly ReductionCase[]): Promise<void> {
  const byRank = await worlds.results(size, 'allReduce', { cases });
  cases.forEach((reduction, index) => {
    const where = `allReduce, ${describeCase(size, reduction)}`;
    const buffers = byRank.map((results) => results[index] as WireBuffer);
    expectSameBits(where, buffers);
    expectReduction(where, worlds, buffers[0], size, reduction, [0, reduction.count]);
  });
}

/** On `reduceScatter` the parts begin where those of lower ranks end. */
const startOf = (counts: readonly number[], rank: number): number => counts.slice(0, rank).reduce((a, b) => a + b, 0);

export const reductionProperties: readonly Property[] = [
  {
    title: 'allReduce gives every rank the same bits, the reduction in rank order: every dtype and op, small counts',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const cases = reductions(worlds).flatMap((reduction) =>
          countsFor(size).map((count) => ({ ...reduction, count })),
        );
        await checkAllReduce(worlds, size, worlds.sampleOf(cases, size));
      }
    },
  },
  {
    title: 'allReduce of many elements is the same reduction',
    async check(worlds) {
      const cases = reductions(worlds)
        .filter(({ fill }) => fill === 'rounding')
        .filter(({ op }) => op === 'Sum' || op === 'Average')
        .map((reduction) => ({ ...reduction, count: LARGE_COUNT }));
      const tried = cases.slice(0, count('conformance: large allReduce', 2, cases.length));
      for (const size of [2, 3].slice(0, count('conformance: sizes of large allReduce', 1, 2))) {
        await checkAllReduce(worlds, size + 1, tried);
      }
    },
  },
  {
    title: 'reduce gives the destination the reduction, in place or not, and leaves what the others sent alone',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const allCases = DTYPES.flatMap((dtype) =>
          countsFor(size).flatMap((count) =>
            Array.from({ length: size }, (_unused, root) => ({
              ...({ dtype, op: root % 2 === 0 ? ReduceOp.Sum : average(worlds, dtype), fill: 'rounding' } as const),
              count,
              root,
              inPlace: count % 2 === 0,
            })),
          ),
        );
        const cases = worlds.sampleOf(allCases, size);
        const byRank = await worlds.results(size, 'reduce', { cases });
        cases.forEach((reduction, index) => {
          const { dtype, fill, root, inPlace, count } = reduction;
          byRank.forEach((results, rank) => {
            const { send, recv } = results[index] as Held;
            const where = `reduce to rank ${root}, ${describeCase(size, reduction)}, rank ${rank}`;
            if (rank === root) expectReduction(where, worlds, recv, size, reduction, [0, count]);
            if (rank !== root || !inPlace)
              expectValues(`${where}: sent`, send, expectedFill(size, dtype, fill, rank, 0, count));
          });
        });
      }
    },
  },
  {
    title: 'reduceScatter gives each rank its slice of the reduction, in place or not, and leaves what was sent alone',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const allCases = reductions(worlds)
          .filter(({ op, fill }) => fill === 'rounding' && (op === 'Sum' || op === 'Average' || op === 'Max'))
          .flatMap((reduction) =>
            countsFor(size).flatMap((count) => [true, false].map((inPlace) => ({ ...reduction, count, inPlace }))),
          );
        const cases = worlds.sampleOf(allCases, size);
        const byRank = await worlds.results(size, 'reduceScatter', { cases });
        cases.forEach((reduction, index) => {
          const { count, inPlace, dtype, fill } = reduction;
          byRank.forEach((results, rank) => {
            const { send, recv } = results[index] as Held;
            const where = `reduceScatter${inPlace ? ' in place' : ''}, ${describeCase(size, reduction)}, rank ${rank}`;
            expectReduction(where, worlds, recv, size, reduction, [rank * count, count]);
            if (!inPlace) expectValues(`${where}: sent`, send, expectedFill(size, dtype, fill, rank, 0, size * count));
          });
        });
      }
    },
  },
  {
    title: 'reduceScatter takes unequal counts, zeros among them',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const shapes = [
          Array.from({ length: size }, (_unused, rank) => rank + 1),
          Array.from({ length: size }, (_unused, rank) => (rank % 2 === 0 ? 0 : 5)),
          Array.from({ length: size }, (_unused, rank) => (rank === size - 1 ? 0 : 101)),
        ];
        const cases = shapes.flatMap((counts) =>
          (['float32', 'bfloat16', 'int64'] as const).flatMap((dtype) =>
            [true, false].map((inPlace) => ({
              dtype,
              op: ReduceOp.Sum,
              fill: 'rounding' as const,
              count: 0,
              counts,
              inPlace,
            })),
          ),
        );
        const byRank = await worlds.results(size, 'reduceScatter', { cases });
        cases.forEach((reduction, index) => {
          const { counts } = reduction;
          byRank.forEach((results, rank) => {
            const where = `reduceScatter, counts [${counts.join()}], ${reduction.dtype}, rank ${rank}`;
            const part = [startOf(counts, rank), counts[rank] as number] as const;
            expectReduction(where, worlds, results[index]?.recv, size, reduction, part);
          });
        });
      }
    },
  },
];
