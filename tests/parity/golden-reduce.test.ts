import type { HostBuffer } from '../../src/core/dtype';
import { InvalidArgumentError } from '../../src/core/errors';
import { checkReduceOp } from '../../src/core/reduce-op';
import { reduceBuffers } from '../../src/core/reduce';
import { compared, decode, goldenReductions, goldenRuns } from '../helpers/golden-reduce';

test('the file holds what it should', () => {
  expect(goldenReductions.cases.length).toBeGreaterThan(0);
  for (const { world, inputs } of goldenReductions.cases) expect(inputs).toHaveLength(world);
});

test.each(goldenRuns)('$name', ({ golden, op }) => {
  const buffers = golden.inputs.map((elements) => decode(golden.dtype, elements));
  const target = buffers[buffers.length - 1] as HostBuffer; // in place, in the buffer that is read last
  reduceBuffers(target, buffers, op);
  const { got, expected } = compared(golden, op, target);
  expect(got).toEqual(expected);
});

test.each(goldenReductions.mustReject)('$op of $dtype is refused', ({ dtype, op }) => {
  expect(() => checkReduceOp(op, dtype)).toThrow(InvalidArgumentError);
});
