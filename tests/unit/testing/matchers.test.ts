import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import { Tensor } from '../../../src/tensor/tensor';
import { lockstepMatchers, type LockstepMatchers } from '../../../src/testing/index';

declare global {
  // eslint-disable-next-line @typescript-eslint/no-namespace -- how @types/jest is extended
  namespace jest {
    // eslint-disable-next-line @typescript-eslint/no-empty-object-type, @typescript-eslint/no-unused-vars -- as LockstepMatchers says
    interface Matchers<R, T> extends LockstepMatchers<R> {}
  }
}

expect.extend(lockstepMatchers);

const floats = (...values: number[]): Float32Array => Float32Array.from(values);

function complaintOf(assertion: () => void): string {
  try {
    assertion();
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error('expected the assertion to fail');
}

describe('toEqualBits', () => {
  test('passes for the same dtype, shape and bits: tensors, buffers, one of each', () => {
    expect(floats(1, -0, NaN)).toEqualBits(floats(1, -0, NaN));
    expect(Tensor.from([1, 2])).toEqualBits(Tensor.from([1, 2]));
    expect(Tensor.from([1, 2])).toEqualBits(floats(1, 2));
    expect(BigInt64Array.of(2n ** 60n)).toEqualBits(BigInt64Array.of(2n ** 60n));
    expect(floats()).toEqualBits(floats());
  });

  test('tells what == does not', () => {
    expect(floats(0)).not.toEqualBits(floats(-0));
    expect(new Float32Array(Uint32Array.of(0x7fc00000).buffer)).not.toEqualBits(
      new Float32Array(Uint32Array.of(0x7fc00001).buffer),
    );
    expect(Float16Buffer.from([1])).not.toEqualBits(BFloat16Buffer.from([1]));
    expect(Tensor.from([1, 2])).not.toEqualBits(Tensor.from([[1, 2]]));
  });

  test('shows the first difference: place, values, bits', () => {
    const received = Tensor.from([
      [1, 2, 3],
      [4, 5, 0.1],
    ]);
    const expected = Tensor.from([
      [1, 2, 3],
      [4, 5.5, 0.25],
    ]);
    expect(complaintOf(() => expect(received).toEqualBits(expected))).toBe(
      [
        'toEqualBits: 2 of 6 elements of float32 [2, 3] differ.',
        'The first is element 4, at [1, 1]:',
        '  expected: 5.5  0x40b00000',
        '  received: 5  0x40a00000',
      ].join('\n'),
    );
    expect(complaintOf(() => expect(Float16Buffer.from([1])).toEqualBits(Float16Buffer.from([1.5])))).toMatch(
      /expected: 1\.5 {2}0x3e00\n {2}received: 1 {2}0x3c00/,
    );
    expect(complaintOf(() => expect(BigInt64Array.of(-1n)).toEqualBits(BigInt64Array.of(1n)))).toMatch(
      /received: -1 {2}0xffffffffffffffff/,
    );
  });

  test('says which of dtype and shape differs, and what is no tensor', () => {
    expect(complaintOf(() => expect(floats(1)).toEqualBits(Float64Array.of(1)))).toBe(
      'toEqualBits: expected float64 [1], received float32 [1].',
    );
    expect(complaintOf(() => expect([1]).toEqualBits(floats(1)))).toMatch(
      /received value has to be a tensor or a host buffer, got \[object Array\]/,
    );
    expect(complaintOf(() => expect(floats(1)).toEqualBits(new Uint16Array(1) as never))).toMatch(
      /expected value.*got \[object Uint16Array\]\. Bits of 16-bit floats go into/,
    );
    expect(complaintOf(() => expect(undefined).toEqualBits(floats(1)))).toMatch(/got undefined/);
  });

  test('refuses what is no tensor also when negated', () => {
    for (const value of [undefined, null, [1], 1, {}]) {
      expect(complaintOf(() => expect(value).not.toEqualBits(floats(1)))).toMatch(
        /toEqualBits: the received value has/,
      );
      expect(complaintOf(() => expect(floats(1)).not.toEqualBits(value as never))).toMatch(/the expected value has/);
      expect(complaintOf(() => expect(value).not.toBeCloseToTensor(floats(1)))).toMatch(/the received value has/);
      expect(complaintOf(() => expect(floats(1)).not.toBeCloseToTensor(value as never))).toMatch(/the expected value/);
    }
  });

  test('negated, says that the bits are the same', () => {
    expect(complaintOf(() => expect(floats(1)).not.toEqualBits(floats(1)))).toMatch(
      /expected other bits, but float32 \[1\] has the same/,
    );
  });
});

describe('toBeCloseToTensor', () => {
  test('has the tolerances of the dtype', () => {
    expect(floats(1, 1e6)).toBeCloseToTensor(floats(1 + 1e-6, 1e6 + 1));
    expect(floats(1)).not.toBeCloseToTensor(floats(1 + 1e-4));
    expect(Float64Array.of(1)).not.toBeCloseToTensor(Float64Array.of(1 + 1e-6));
    expect(BFloat16Buffer.from([1])).toBeCloseToTensor(BFloat16Buffer.from([1.0078125]));
    expect(Int32Array.of(5)).not.toBeCloseToTensor(Int32Array.of(6));
    expect(BigInt64Array.of(2n ** 60n)).not.toBeCloseToTensor(BigInt64Array.of(2n ** 60n + 1n));
  });

  test('takes others: absolute, and relative to the expected value', () => {
    expect(floats(10)).toBeCloseToTensor(floats(11), { atol: 1 });
    expect(floats(10)).toBeCloseToTensor(floats(11), { rtol: 0.1, atol: 0 });
    expect(floats(10)).not.toBeCloseToTensor(floats(12), { rtol: 0.1, atol: 0 });
    expect(Int32Array.of(5)).toBeCloseToTensor(Int32Array.of(6), { atol: 1 });
  });

  test('matches NaN with NaN, and infinities with themselves alone', () => {
    expect(floats(NaN, Infinity)).toBeCloseToTensor(floats(NaN, Infinity));
    expect(floats(Infinity)).not.toBeCloseToTensor(floats(-Infinity), { atol: Infinity });
    expect(floats(NaN)).not.toBeCloseToTensor(floats(0), { atol: 1e9 });
    expect(floats(1)).not.toBeCloseToTensor(floats(Infinity));
  });

  test('says how many differ, by how much, and where first', () => {
    const complaint = complaintOf(() =>
      expect(Tensor.from([1, 2, 3])).toBeCloseToTensor(Tensor.from([1, 2.5, 7]), { atol: 0.25, rtol: 0 }),
    );
    expect(complaint).toMatch(
      /^toBeCloseToTensor: 2 of 3 elements of float32 \[3\] differ by more than 0\.25 \+ 0 \|expected\| \(by 4 at most\)\.\nThe first is element 1:\n {2}expected: 2\.5 /,
    );
  });
});

test('the matchers are plain functions, as Vitest takes them too', () => {
  const result = lockstepMatchers.toEqualBits.call({ isNot: false } as never, floats(1), floats(2));
  expect(result.pass).toBe(false);
  expect(result.message()).toMatch(/toEqualBits/);
});
