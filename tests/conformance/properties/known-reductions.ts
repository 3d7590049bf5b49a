import type { DType } from '../../../src/core/dtype';
import type { ReduceOp } from '../../../src/core/reduce-op';
import { storeValues } from '../../helpers/fill';
import { compared, decode, goldenRuns } from '../../helpers/golden-reduce';
import { expectEqual, expectSameBits, expectValues } from '../expectations';
import type { Property, Worlds } from '../property';
import { fromWireBuffer, toWireBuffer, type WireBuffer } from '../wire-buffer';

/** One element per rank, and what it reduces to. */
interface Known {
  readonly what: string;
  readonly dtype: DType;
  readonly op: ReduceOp;
  readonly inputs: readonly (number | bigint)[];
  readonly result: number | bigint;
}

const wire = (dtype: DType, value: number | bigint): WireBuffer =>
  toWireBuffer(dtype === 'int64' ? BigInt64Array.of(BigInt(value)) : storeValues(dtype, [Number(value)]));

async function checkKnown(worlds: Worlds, known: readonly Known[]): Promise<void> {
  for (const size of new Set(known.map(({ inputs }) => inputs.length))) {
    const group = known.filter(({ inputs }) => inputs.length === size);
    const cases = group.map(({ dtype, op, inputs }) => ({ op, inputs: inputs.map((value) => wire(dtype, value)) }));
    const byRank = await worlds.results(size, 'allReduceGiven', { cases });
    group.forEach(({ what, result }, index) => {
      const buffers = byRank.map((results) => results[index] as WireBuffer);
      expectSameBits(what, buffers);
      expectValues(what, buffers[0], [result]);
    });
  }
}

const FLOATS = ['float32', 'float64', 'float16', 'bfloat16'] as const;

export const knownReductionProperties: readonly Property[] = [
  {
    title: 'the golden vectors',
    async check(worlds) {
      if (!worlds.capabilities.bitwise) return; // they hold bits that depend on the order of the ranks
      for (const size of new Set(goldenRuns.map(({ golden }) => golden.world))) {
        const runs = goldenRuns.filter(({ golden }) => golden.world === size);
        const cases = runs.map(({ golden, op }) => ({
          op,
          inputs: golden.inputs.map((elements) => toWireBuffer(decode(golden.dtype, elements))),
        }));
        const byRank = await worlds.results(size, 'allReduceGiven', { cases });
        runs.forEach(({ name, golden, op }, index) => {
          const buffers = byRank.map((results) => results[index] as WireBuffer);
          expectSameBits(name, buffers);
          const { got, expected } = compared(golden, op, fromWireBuffer(buffers[0] as WireBuffer));
          expectEqual(name, got, expected);
        });
      }
    },
  },
  {
    title: 'NaN goes through Min and Max, whichever rank has it',
    check: (worlds) =>
      checkKnown(
        worlds,
        FLOATS.flatMap((dtype) =>
          (['Min', 'Max'] as const).flatMap((op) =>
            [
              [NaN, 1],
              [1, NaN],
              [1, NaN, 2],
              [NaN, -Infinity, Infinity],
            ].map((inputs) => ({ what: `${op} of ${dtype} [${inputs.join()}]`, dtype, op, inputs, result: NaN })),
          ),
        ),
      ),
  },
  {
    title: 'infinities and signed zeros keep to IEEE arithmetic',
    check: (worlds) =>
      checkKnown(
        worlds,
        FLOATS.flatMap((dtype) => [
          { what: 'inf - inf', dtype, op: 'Sum', inputs: [Infinity, -Infinity], result: NaN },
          { what: 'inf + 1', dtype, op: 'Sum', inputs: [Infinity, 1], result: Infinity },
          { what: '-0 + -0', dtype, op: 'Sum', inputs: [-0, -0], result: -0 },
          { what: '-0 + 0', dtype, op: 'Sum', inputs: [-0, 0], result: 0 },
          { what: 'least of infinities', dtype, op: 'Min', inputs: [Infinity, -Infinity, 0], result: -Infinity },
        ]),
      ),
  },
  {
    title: 'integer sums wrap, and are exact where they fit',
    check: (worlds) =>
      checkKnown(worlds, [
        { what: 'int64 wraps', dtype: 'int64', op: 'Sum', inputs: [2n ** 62n, 2n ** 62n], result: -(2n ** 63n) },
        {
          what: 'int64 above 2^53',
          dtype: 'int64',
          op: 'Sum',
          inputs: [2n ** 53n + 1n, 2n ** 53n + 2n],
          result: 18014398509481987n,
        },
        { what: 'uint8 wraps', dtype: 'uint8', op: 'Sum', inputs: [200, 200], result: 144 },
        { what: 'int8 wraps', dtype: 'int8', op: 'Sum', inputs: [-128, -128], result: 0 },
        { what: 'int32 products wrap', dtype: 'int32', op: 'Product', inputs: [65537, 65537], result: 131073 },
        {
          what: 'int32 products beyond 2^53',
          dtype: 'int32',
          op: 'Product',
          inputs: [2147483647, 2147483647],
          result: 1,
        },
      ]),
  },
  {
    title: 'integer averages sum without wrapping and truncate toward zero',
    check: (worlds) =>
      checkKnown(worlds, [
        { what: 'uint8', dtype: 'uint8', op: 'Average', inputs: [200, 201], result: 200 },
        { what: 'int8', dtype: 'int8', op: 'Average', inputs: [-128, -127], result: -127 },
        {
          what: 'int32',
          dtype: 'int32',
          op: 'Average',
          inputs: [2 ** 31 - 1, 2 ** 31 - 1, 2 ** 31 - 2],
          result: 2 ** 31 - 2,
        },
        { what: 'int32 toward zero', dtype: 'int32', op: 'Average', inputs: [-3, 0], result: -1 },
        {
          what: 'int64',
          dtype: 'int64',
          op: 'Average',
          inputs: [2n ** 63n - 1n, 2n ** 63n - 1n],
          result: 2n ** 63n - 1n,
        },
        { what: 'int64 toward zero', dtype: 'int64', op: 'Average', inputs: [-7n, 0n, 0n], result: -2n },
      ]),
  },
  {
    title: '16-bit floats accumulate in float32 and round once, ties to even',
    check: (worlds) =>
      checkKnown(worlds, [
        { what: 'overflow', dtype: 'float16', op: 'Sum', inputs: [60000, 60000], result: Infinity },
        { what: 'tie', dtype: 'float16', op: 'Sum', inputs: [2048, 1], result: 2048 },
        { what: 'two ones survive', dtype: 'float16', op: 'Sum', inputs: [2048, 1, 1], result: 2050 },
        {
          what: 'the average of large numbers',
          dtype: 'float16',
          op: 'Average',
          inputs: [40000, 40000],
          result: 40000,
        },
        {
          what: 'the average of the smallest numbers',
          dtype: 'float16',
          op: 'Average',
          inputs: [2 ** -24, 2 ** -24],
          result: 2 ** -24,
        },
        { what: 'bfloat16 tie', dtype: 'bfloat16', op: 'Sum', inputs: [256, 1], result: 256 },
        { what: 'bfloat16 two ones survive', dtype: 'bfloat16', op: 'Sum', inputs: [256, 1, 1], result: 258 },
      ]),
  },
  {
    title: 'a group of one gets its input back, for every op',
    check: (worlds) =>
      checkKnown(
        worlds,
        worlds.capabilities.dtypes.flatMap((dtype) =>
          worlds.capabilities.reduceOps
            .filter((op) => worlds.reduces(dtype, op))
            .map((op) => ({
              what: `${op} of one ${dtype}`,
              dtype,
              op,
              inputs: dtype === 'int64' ? [-3n] : [3],
              result: dtype === 'int64' ? -3n : 3,
            })),
        ),
      ),
  },
  {
    title: 'what the peer’s tests state of its reduce ops',
    check: (worlds) =>
      checkKnown(worlds, [
        { what: 'test_reduce_op_sum', dtype: 'float32', op: 'Sum', inputs: [1, 2], result: 3 },
        { what: 'test_reduce_op_product', dtype: 'float32', op: 'Product', inputs: [2, 3], result: 6 },
        { what: 'test_reduce_op_min', dtype: 'float32', op: 'Min', inputs: [2, 3], result: 2 },
        { what: 'test_reduce_op_max', dtype: 'float32', op: 'Max', inputs: [2, 3], result: 3 },
        { what: 'test_reduce_op_all_variants', dtype: 'float32', op: 'Average', inputs: [2, 4], result: 3 },
        { what: 'test_reduce_slices_sum', dtype: 'float32', op: 'Sum', inputs: [1, 3, 5], result: 9 },
        { what: 'test_reduce_slices_average', dtype: 'float32', op: 'Average', inputs: [1, 3], result: 2 },
        { what: 'test_mock_all_reduce', dtype: 'float32', op: 'Sum', inputs: [2], result: 2 },
        { what: 'test_mock_all_reduce_sum_world_of_three', dtype: 'float32', op: 'Sum', inputs: [1, 2, 3], result: 6 },
        { what: 'all_reduce_sum_across_four_ranks', dtype: 'float32', op: 'Sum', inputs: [1, 2, 3, 4], result: 10 },
        { what: 'all_reduce_mean_across_three_ranks', dtype: 'float32', op: 'Average', inputs: [0, 3, 6], result: 3 },
        { what: 'all_reduce_min_across_four_ranks', dtype: 'float32', op: 'Min', inputs: [10, 9, 8, 7], result: 7 },
        { what: 'all_reduce_max_across_four_ranks', dtype: 'float32', op: 'Max', inputs: [0, 1, 2, 3], result: 3 },
      ]),
  },
];
