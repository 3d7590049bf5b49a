import { bytesOf, type DType, type HostBuffer } from '../../../src/core/dtype';
import { ReduceOp } from '../../../src/core/reduce-op';
import { CANONICAL_NAN, FLOAT_DTYPES, specialNumbers, type FloatDType } from '../../helpers/nan-bits';
import { expectSameBits } from '../expectations';
import type { Property, Worlds } from '../property';
import { fromWireBuffer, toWireBuffer, type WireBuffer } from '../wire-buffer';

const OPS = [ReduceOp.Sum, ReduceOp.Product, ReduceOp.Average, ReduceOp.Min, ReduceOp.Max];

/** By rank: together the columns of the inputs are all tuples of the special numbers, so every order of any of them. */
function allTuples(dtype: DType, size: number): WireBuffer[] {
  const numbers = specialNumbers(dtype);
  const length = numbers.length ** size;
  return Array.from({ length: size }, (_unused, rank) => {
    const column = (i: number): number => Math.floor(i / numbers.length ** rank) % numbers.length;
    const bytes = Array.from({ length }, (_gap, i) => bytesOf(numbers[column(i)] as HostBuffer));
    return { dtype, base64: Buffer.concat(bytes).toString('base64') };
  });
}

/** Elements as bits, in hexadecimal, the highest first. */
function bitsOf({ dtype, base64 }: WireBuffer): string[] {
  const bytes = Buffer.from(base64, 'base64');
  const width = fromWireBuffer({ dtype, base64 }).BYTES_PER_ELEMENT;
  return Array.from({ length: bytes.length / width }, (_unused, i) =>
    Buffer.from(bytes.subarray(i * width, (i + 1) * width))
      .reverse()
      .toString('hex'),
  );
}

/** Above it, sign aside, all bits are NaNs. */
const INFINITY = { float32: 0x7f800000n, float64: 0x7ff0000000000000n, float16: 0x7c00n, bfloat16: 0x7f80n };

const isNaNBits = (dtype: FloatDType, bits: string): boolean => {
  const [value, signBit] = [BigInt(`0x${bits}`), 1n << BigInt(4 * bits.length - 1)];
  return (value & (signBit - 1n)) > INFINITY[dtype];
};

async function checkSize(worlds: Worlds, size: number): Promise<void> {
  const cases = FLOAT_DTYPES.flatMap((dtype) => {
    const inputs = allTuples(dtype, size);
    return OPS.map((op) => ({ dtype, op, inputs }));
  });
  const byRank = await worlds.results(size, 'allReduceGiven', { cases });
  cases.forEach(({ dtype, op, inputs }, index) => {
    const buffers = byRank.map((results) => results[index] as WireBuffer);
    const given = inputs.map(bitsOf);
    expectSameBits(`${op} of ${dtype} on ${size} ranks`, buffers);
    bitsOf(buffers[0] as WireBuffer).forEach((bits, i) => {
      const column = given.map((rank) => rank[i] as string);
      const isNaN = isNaNBits(dtype, bits);
      if (isNaN ? bits === CANONICAL_NAN[dtype] : !column.some((input) => isNaNBits(dtype, input))) return;
      const expected = isNaN ? `the canonical ${CANONICAL_NAN[dtype]}` : 'NaN';
      throw new Error(`${op} of ${dtype} 0x${column.join(', 0x')} is 0x${bits}, expected ${expected}`);
    });
  });
}

export const nanReductionProperties: readonly Property[] = [
  {
    title: 'a reduction that is NaN is the one canonical NaN, whatever NaNs and infinities went in, in every order',
    async check(worlds) {
      if (!worlds.capabilities.bitwise) return;
      for (const size of [2, 3]) await checkSize(worlds, size);
    },
  },
  {
    title: 'a group of one gets its input back, NaN with sign and payload',
    async check(worlds) {
      const cases = FLOAT_DTYPES.flatMap((dtype) => OPS.map((op) => ({ op, inputs: allTuples(dtype, 1) })));
      const [results] = await worlds.results(1, 'allReduceGiven', { cases });
      cases.forEach(({ op, inputs }, index) => {
        const [input] = inputs as [WireBuffer];
        expectSameBits(`${op} of one ${input.dtype}`, [input, results?.[index] ?? toWireBuffer(new Uint8Array(0))]);
      });
    },
  },
];
