/** How far a training on a device may be from that on the host. */
import { FLAT_UPDATE_TOLERANCE } from '../../src/core/flat-update';
import type { ZeroPrecision } from '../../src/zero/zero-options';
import { STEPS } from './zero-device-program';
import type { PlainRun } from './zero-device-tasks';

/** Relative distance of neighbouring numbers, of what parameters are stored in. */
const NEIGHBOUR = { float32: 0, bfloat16: 2 ** -7, float16: 2 ** -10 };

/** Parameters and state agree to the tolerance of a step, for each step, and where they are in 16 bits to a neighbour. */
export function expectCloseRun(actual: PlainRun, expected: PlainRun, precision: ZeroPrecision): void {
  const bound = STEPS * FLAT_UPDATE_TOLERANCE;
  expect(actual.parameters).toHaveLength(expected.parameters.length);
  for (const [i, parameter] of expected.parameters.entries()) {
    // a master next to the middle of two 16-bit numbers rounds to either; 'half' is in bfloat16 always
    const neighbour = Math.max(NEIGHBOUR[precision], precision === 'float32' ? NEIGHBOUR.bfloat16 : 0);
    expectClose(actual.parameters[i] as number[], parameter, bound + neighbour);
  }
  expectClose(actual.state, expected.state, bound + NEIGHBOUR[precision]);
}

/** Each value within `relative` of its magnitude, or of 1. */
export function expectClose(actual: readonly number[], expected: readonly number[], relative: number): void {
  expect(actual).toHaveLength(expected.length);
  for (const [i, value] of expected.entries()) {
    const difference = Math.abs((actual[i] as number) - value);
    const bound = relative * Math.max(1, Math.abs(value));
    expect({ i, value, difference, isClose: difference <= bound }).toMatchObject({ isClose: true });
  }
}

/**
 * Four ranks' gradients summed in another order: in 16 bits three roundings, and that of 1/ranks, come into each of the steps,
 * whose rates and momenta make a few of them in all. One parameter is bfloat16 in every precision, and all others learn from it.
 */
const OTHER_ORDER = { float32: 2 ** -8, bfloat16: 2 ** -6, float16: 2 ** -8 };

/** A run whose reductions had another order. */
export function expectNearRun(actual: PlainRun, expected: PlainRun, precision: ZeroPrecision): void {
  const bound = OTHER_ORDER[precision];
  for (const [i, parameter] of expected.parameters.entries()) {
    const neighbour = Math.max(NEIGHBOUR[precision], precision === 'float32' ? NEIGHBOUR.bfloat16 : 0);
    expectClose(actual.parameters[i] as number[], parameter, bound + neighbour);
  }
  expectClose(actual.state, expected.state, bound);
  expectClose(actual.losses, expected.losses, bound);
  expectClose(actual.norms, expected.norms, bound);
}
