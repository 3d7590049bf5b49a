import { runInNewContext } from 'node:vm';
import {
  allocateBuffer,
  byteSize,
  bytesOf,
  copyBuffer,
  DTYPES,
  dtypeOf,
  type HostBuffer,
  isDetached,
  isDType,
  isFloatDType,
  tryDTypeOf,
  viewBuffer,
} from '../../../src/core/dtype';
import { InvalidArgumentError } from '../../../src/core/errors';
import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import type * as HalfBufferModule from '../../../src/core/half-buffer';
import { secondCopy } from '../../helpers/second-copy';

const bytes = { float32: 4, float64: 8, float16: 2, bfloat16: 2, int8: 1, uint8: 1, int32: 4, int64: 8 };

describe('every dtype', () => {
  test.each(DTYPES)('%s has a buffer whose class says it', (dtype) => {
    const buffer = allocateBuffer(dtype, 5);
    expect(buffer).toHaveLength(5);
    expect(dtypeOf(buffer)).toBe(dtype);
    expect(buffer.BYTES_PER_ELEMENT).toBe(bytes[dtype]);
    expect(byteSize(dtype)).toBe(bytes[dtype]);
    expect(bytesOf(buffer)).toEqual(new Uint8Array(5 * bytes[dtype]));
  });

  test.each(DTYPES)('%s: a view is the same memory and has the same class', (dtype) => {
    const whole = allocateBuffer(dtype, 6);
    const outer = viewBuffer(whole, 1, 4);
    const inner = viewBuffer(outer, 1, 2);
    bytesOf(inner).fill(1);
    expect(dtypeOf(inner)).toBe(dtype);
    const first = [...bytesOf(whole)].findIndex((byte) => byte === 1);
    expect(first).toBe(2 * bytes[dtype]);
    expect(bytesOf(whole).filter((byte) => byte === 1)).toHaveLength(2 * bytes[dtype]);
    expect(viewBuffer(whole, 6, 0)).toHaveLength(0);
  });

  test.each(DTYPES)('%s: a copy moves bits, at the place asked for', (dtype) => {
    const source = allocateBuffer(dtype, 2);
    bytesOf(source).forEach((_byte, index, all) => (all[index] = index + 129)); // NaN payloads among the floats
    const target = allocateBuffer(dtype, 4);
    copyBuffer(target, source, 1);
    expect(bytesOf(viewBuffer(target, 1, 2))).toEqual(bytesOf(source));
    expect(bytesOf(viewBuffer(target, 0, 1))).toEqual(new Uint8Array(bytes[dtype]));
    expect(bytesOf(viewBuffer(target, 3, 1))).toEqual(new Uint8Array(bytes[dtype]));
  });

  test('is a float or not', () => {
    expect(DTYPES.filter(isFloatDType)).toEqual(['float32', 'float64', 'float16', 'bfloat16']);
  });

  test('is known by its exact name only', () => {
    expect(DTYPES.every(isDType)).toBe(true);
    for (const other of ['Float32', 'float', 'uint16', 'toString', '', undefined, null, 4])
      expect(isDType(other)).toBe(false);
  });
});

describe('buffers of another realm', () => {
  test.each([
    ['Float32Array', 'float32'],
    ['Float64Array', 'float64'],
    ['Int8Array', 'int8'],
    ['Uint8Array', 'uint8'],
    ['Int32Array', 'int32'],
    ['BigInt64Array', 'int64'],
  ])('a %s made in another context is %s', (name, dtype) => {
    const foreign = runInNewContext(`new ${name}(3)`) as HostBuffer;
    expect(tryDTypeOf(foreign)).toBe(dtype);
    expect(dtypeOf(viewBuffer(foreign, 1, 1))).toBe(dtype);
    expect(isDetached(foreign)).toBe(false);
  });

  test('a 16-bit buffer of another copy of the package keeps its dtype', () => {
    const copy = secondCopy(() => jest.requireActual<typeof HalfBufferModule>('../../../src/core/half-buffer'));
    const foreign: HostBuffer = copy.BFloat16Buffer.from([1, 2]);
    expect(foreign).not.toBeInstanceOf(BFloat16Buffer);
    expect(dtypeOf(foreign)).toBe('bfloat16');
    expect([...new BFloat16Buffer(foreign).toFloat32()]).toEqual([1, 2]);
  });

  test('a node Buffer is uint8', () => {
    expect(dtypeOf(Buffer.from('abc'))).toBe('uint8');
  });
});

describe('what is not a buffer is refused', () => {
  test.each([
    ['undefined', undefined, /got undefined/],
    ['null', null, /got null/],
    ['a number', 3, /got a number/],
    ['an array', [1, 2], /got Array.*Float32Array\.from\(values\)/],
    ['an ArrayBuffer', new ArrayBuffer(8), /got ArrayBuffer/],
    ['a DataView', new DataView(new ArrayBuffer(8)), /got DataView/],
    ['a Uint32Array', new Uint32Array(2), /got Uint32Array/],
    ['an Int16Array', new Int16Array(2), /got Int16Array/],
    ['a BigUint64Array', new BigUint64Array(2), /got BigUint64Array/],
    ['a Uint8ClampedArray', new Uint8ClampedArray(2), /got Uint8ClampedArray/],
  ])('%s', (_what, value, message) => {
    expect(tryDTypeOf(value)).toBeUndefined();
    expect(() => dtypeOf(value, 'allReduce: data')).toThrow(InvalidArgumentError);
    expect(() => dtypeOf(value, 'allReduce: data')).toThrow(
      /^allReduce: data: expected a Float32Array, .*BigInt64Array/,
    );
    expect(() => dtypeOf(value)).toThrow(message);
  });

  test('a plain Uint16Array, which structuredClone makes of a 16-bit buffer: the message says so', () => {
    const cloned: unknown = structuredClone(Float16Buffer.from([1]));
    expect(() => dtypeOf(cloned)).toThrow(InvalidArgumentError);
    expect(() => dtypeOf(cloned)).toThrow(
      /got Uint16Array.*Float16Buffer\.fromBits.*structuredClone and postMessage drop the class/,
    );
  });
});

test('memory that was transferred away is told from an empty buffer', () => {
  const given = Float32Array.of(1, 2);
  expect(isDetached(given)).toBe(false);
  structuredClone(given, { transfer: [given.buffer] });
  expect(given).toHaveLength(0);
  expect(isDetached(given)).toBe(true);
  expect(isDetached(new Float32Array(0))).toBe(false);
  expect(isDetached(new Float32Array(4).subarray(2, 2))).toBe(false);
});
