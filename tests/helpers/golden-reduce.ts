/** The golden reductions: bits in, bits out. */
import { allocateBuffer, type DType, type HostBuffer } from '../../src/core/dtype';
import type { ReduceOp } from '../../src/core/reduce-op';
import { readGolden } from './golden';

/** Bits of a float (a hexadecimal string for float64), an integer, or 'NaN' for any NaN. */
export type Element = number | string;

export interface ReduceCase {
  readonly name: string;
  readonly dtype: DType;
  readonly world: number;
  readonly inputs: readonly (readonly Element[])[];
  readonly expected: Readonly<Partial<Record<ReduceOp, readonly Element[]>>>;
  readonly averageIfTheSumDidNotWrap?: readonly Element[];
  readonly zeroSign?: 'any';
}

interface ReduceGolden {
  readonly cases: readonly ReduceCase[];
  readonly mustReject: readonly { readonly dtype: DType; readonly op: ReduceOp }[];
}

export const goldenReductions = readGolden<ReduceGolden>('reduce.json');

/** The array that the elements of the file are stored in: bits of floats, integers as they are. */
function storageOf(buffer: HostBuffer, dtype: DType): HostBuffer | BigUint64Array | Uint32Array {
  if (dtype === 'float32') return new Uint32Array(buffer.buffer, buffer.byteOffset, buffer.length);
  if (dtype === 'float64') return new BigUint64Array(buffer.buffer, buffer.byteOffset, buffer.length);
  return buffer;
}

export function decode(dtype: DType, elements: readonly Element[]): HostBuffer {
  const buffer = allocateBuffer(dtype, elements.length);
  const storage = storageOf(buffer, dtype);
  elements.forEach((element, i) => {
    storage[i] = dtype === 'int64' || dtype === 'float64' ? BigInt(element) : Number(element);
  });
  return buffer;
}

function encode(dtype: DType, buffer: HostBuffer): Element[] {
  const values: ArrayLike<number | bigint> = 'toFloat32' in buffer ? buffer.toFloat32() : buffer;
  return Array.from(storageOf(buffer, dtype) as ArrayLike<number | bigint>, (bits, i) => {
    if (Number.isNaN(values[i])) return 'NaN';
    if (dtype === 'float64') return `0x${bits.toString(16).padStart(16, '0')}`;
    return dtype === 'int64' ? bits.toString() : Number(bits);
  });
}

const negativeZero: Partial<Record<DType, Element>> = {
  float32: 0x80000000,
  float64: '0x8000000000000000',
  float16: 0x8000,
  bfloat16: 0x8000,
};

/** Min and Max of +0 and -0 may give either. */
function withoutZeroSigns(dtype: DType, elements: readonly Element[]): Element[] {
  const positiveZero = dtype === 'float64' ? '0x0000000000000000' : 0;
  return elements.map((element) => (element === negativeZero[dtype] ? positiveZero : element));
}

/** Every case with every op that it holds a result for. */
export const goldenRuns: readonly { readonly name: string; readonly golden: ReduceCase; readonly op: ReduceOp }[] =
  goldenReductions.cases.flatMap((golden) =>
    (Object.keys(golden.expected) as ReduceOp[]).map((op) => ({ name: `${golden.name}, ${op}`, golden, op })),
  );

/** What a reduction gave and what it should have given, both as elements of the file. */
export function compared(golden: ReduceCase, op: ReduceOp, got: HostBuffer): { got: Element[]; expected: Element[] } {
  const { dtype, zeroSign, averageIfTheSumDidNotWrap } = golden;
  const expected = [...((op === 'Average' ? averageIfTheSumDidNotWrap : undefined) ?? golden.expected[op] ?? [])];
  const elements = encode(dtype, got);
  if (zeroSign !== 'any' || (op !== 'Min' && op !== 'Max')) return { got: elements, expected };
  return { got: withoutZeroSigns(dtype, elements), expected: withoutZeroSigns(dtype, expected) };
}
