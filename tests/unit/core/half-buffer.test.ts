import { InvalidArgumentError } from '../../../src/core/errors';
import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import { dtypeOf } from '../../../src/core/dtype';

const formats = [
  { name: 'Float16Buffer', Buffer: Float16Buffer, dtype: 'float16', oneAndTwo: [0x3c00, 0x4000] },
  { name: 'BFloat16Buffer', Buffer: BFloat16Buffer, dtype: 'bfloat16', oneAndTwo: [0x3f80, 0x4000] },
] as const;

describe.each(formats)('$name', ({ name, Buffer, dtype, oneAndTwo }) => {
  test('from rounds values to bits, fromBits takes bits, toFloat32 gives the values', () => {
    expect([...Buffer.from([1, 2])]).toEqual(oneAndTwo);
    expect([...Buffer.fromBits(oneAndTwo)]).toEqual(oneAndTwo);
    expect([...Buffer.fromBits(oneAndTwo).toFloat32()]).toEqual([1, 2]);
    expect(dtypeOf(Buffer.fromBits(oneAndTwo).toFloat32())).toBe('float32');
  });

  test('from takes typed arrays and iterables too', () => {
    expect([...Buffer.from(Float64Array.of(1, 2))]).toEqual(oneAndTwo);
    expect([...Buffer.from(new Set([1, 2]))]).toEqual(oneAndTwo);
    expect(Buffer.from([])).toHaveLength(0);
  });

  test('from takes the values of 16-bit buffers, not their bits', () => {
    for (const Source of [Float16Buffer, BFloat16Buffer]) {
      expect([...Buffer.from(Source.from([1, 2])).toFloat32()]).toEqual([1, 2]);
    }
  });

  test('of throws: it would store bits', () => {
    expect(() => Buffer.of(1, 2)).toThrow(InvalidArgumentError);
    expect(() => Buffer.of(1, 2)).toThrow(`${name}.from([...])`);
  });

  test.each([
    ['an array of numbers', [1, 2]],
    ['a Float32Array', Float32Array.of(1, 2)],
    ['a plain Uint16Array', Uint16Array.of(1, 2)],
    ['an iterable', new Set([1, 2])],
    ['null', null],
  ])('new with %s throws: it would store bits', (_what, values) => {
    const make = (): unknown => new Buffer(values as unknown as number);
    expect(make).toThrow(InvalidArgumentError);
    expect(make).toThrow(`new ${name}: expected a length or an ArrayBuffer`);
    expect(make).toThrow(`${name}.fromBits(bits)`);
  });

  test('new with a buffer of the other format throws', () => {
    const Other = dtype === 'float16' ? BFloat16Buffer : Float16Buffer;
    expect(() => new Buffer(Other.from([1]) as never)).toThrow(InvalidArgumentError);
  });

  test('new takes a length, memory with a place in it, or a buffer of the same format', () => {
    expect([...new Buffer(2)]).toEqual([0, 0]);
    expect(new Buffer()).toHaveLength(0);
    const memory = Uint16Array.of(9, ...oneAndTwo, 9).buffer;
    expect([...new Buffer(memory, 2, 2).toFloat32()]).toEqual([1, 2]);
    expect([...new Buffer(new SharedArrayBuffer(4))]).toEqual([0, 0]);
    const first = Buffer.from([1, 2]);
    const copy = new Buffer(first as never); // the union of the two classes has no common type
    copy[0] = 0;
    expect([...first]).toEqual(oneAndTwo);
  });

  test('slice, subarray, map and filter keep the class, so the dtype is not lost on the way', () => {
    const buffer = Buffer.from([1, 2]);
    const parts = [buffer.slice(0, 1), buffer.subarray(0, 1), buffer.map((bits) => bits), buffer.filter(() => true)];
    for (const part of parts) {
      expect(part).toBeInstanceOf(Buffer);
      expect(dtypeOf(part)).toBe(dtype);
      expect((part as Float16Buffer | BFloat16Buffer).toFloat32()[0]).toBe(1);
    }
    buffer.subarray(1)[0] = 0;
    expect([...buffer.toFloat32()]).toEqual([1, 0]);
    buffer.slice(0)[0] = 0;
    expect([...buffer.toFloat32()]).toEqual([1, 0]);
  });

  test('indexing, set and fill act on bits', () => {
    const buffer = new Buffer(2);
    buffer.fill(oneAndTwo[0]);
    buffer.set([oneAndTwo[1]], 1);
    expect([...buffer.toFloat32()]).toEqual([1, 2]);
  });
});
