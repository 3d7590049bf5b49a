/** The kernels of the NCCL backend, in their CPU build, against the formats and the arithmetic of this library. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { copySegmentsKernel, segmentTable, type Segment } from '../../../../src/backend/nccl/kernel-segments';
import type { DeviceElements } from '../../../../src/backend/nccl/kernel-launch';
import * as launches from '../../../../src/backend/nccl/kernels';
import { allocateBuffer, dtypeOf, isSameBits, type DType, type HostBuffer } from '../../../../src/core/dtype';
import { Generator } from '../../../../src/core/generator';
import { float16BitsToFloat32Bits, float32BitsToBFloat16, float32BitsToFloat16 } from '../../../../src/core/half';
import { BFloat16Buffer, Float16Buffer } from '../../../../src/core/half-buffer';
import { floatsOf } from '../../../../src/tensor/operators/floats';
import { typescriptKernels } from '../../../../src/tensor/kernels/typescript-kernels';
import { Storage } from '../../../../src/tensor/storage';
import { storeValues } from '../../../helpers/fill';
import { expectSame, fromDevice, KernelRunner, onDevice } from '../../../helpers/kernel-runner';
import { describeNative } from '../../../helpers/native-build';
import { checkUpdates } from './kernel-updates';

const kernelFolder = resolve(__dirname, '../../../../native-nccl/kernels');
const FLOATS = ['float32', 'float16', 'bfloat16'] as const;
const SIZES = [0, 1, 31, 257, 10_007];

/** What is special about float32 and the 16-bit formats. */
const SPECIAL = [0, -0, 1e-45, -1e-40, 6e-8, 65_504, 65_520, 3.4e38, -3.4e38, Infinity, -Infinity, NaN];

const drawn = new Map<number, readonly number[]>();

/** Numbers of many sizes, with special ones among them; drawing is slow, so once a seed. */
function draw(dtype: DType, length: number, seed: number): HostBuffer {
  let numbers = drawn.get(seed);
  if (numbers === undefined) {
    const generator = new Generator(seed);
    numbers = Array.from({ length: Math.max(...SIZES) }, (_unused, i) => {
      if (i % 20 === 7) return SPECIAL[Math.floor(i / 20) % SPECIAL.length] as number;
      return generator.nextNormal() * 2 ** ((i % 30) - 15);
    });
    drawn.set(seed, numbers);
  }
  return storeValues(dtype, numbers.slice(0, length));
}

/** As float32 numbers; int32 as they are. */
function floats(buffer: HostBuffer): Float32Array {
  if (dtypeOf(buffer) === 'int32') return Float32Array.from(buffer as Int32Array);
  return floatsOf(Storage.of(buffer)) as Float32Array;
}

/** What a kernel that computes in float32 leaves in memory of `dtype`. The operations on float32 are exact in float64, or rounded alike. */
const stored = (dtype: DType, values: Float32Array): Float32Array => floats(storeValues(dtype, values));

describe('kernels.ptx', () => {
  const ptx = readFileSync(resolve(kernelFolder, 'kernels.ptx'), 'utf8');

  test('is made of the present kernels.cu; else run native-nccl/scripts/ptx.mjs', () => {
    const hash = createHash('sha256')
      .update(readFileSync(resolve(kernelFolder, 'kernels.cu')))
      .digest('hex');
    expect(ptx).toContain(`sha256 of kernels.cu: ${hash}\n`);
  });

  test('takes drivers of CUDA 11.0 and later', () => {
    expect(ptx).toMatch(/^\.version 7\.0$/m);
    expect(ptx).toMatch(/^\.target sm_75$/m);
  });
});

describeNative('the kernels', ['tests', '--only', 'kernel-runner'], (folder) => {
  const runner = new KernelRunner(folder);

  // Last: every test above adds what it launches.
  afterAll(() => {
    expect([...runner.launched].sort()).toEqual(runner.list().sort());
  });

  test('of the CPU build are those of the PTX', () => {
    const ptx = readFileSync(resolve(kernelFolder, 'kernels.ptx'), 'utf8');
    const entries = [...ptx.matchAll(/\.visible \.entry (\w+)\(/g)].map(([, name]) => name);
    expect(entries.sort()).toEqual(runner.list().sort());
  });

  describe('cast', () => {
    const allBits = Uint16Array.from({ length: 65_536 }, (_unused, i) => i);
    const widened = {
      float16: Uint32Array.from(allBits, float16BitsToFloat32Bits),
      bfloat16: Uint32Array.from(allBits, (half) => half << 16),
    };
    const narrow = { float16: float32BitsToFloat16, bfloat16: float32BitsToBFloat16 };
    const halves = { float16: Float16Buffer, bfloat16: BFloat16Buffer };

    test.each(['float16', 'bfloat16'] as const)('all %s numbers to float32, and to the other format', (dtype) => {
      const other = dtype === 'float16' ? 'bfloat16' : 'float16';
      const source = (): DeviceElements => onDevice(halves[dtype].fromBits(allBits));
      const wide = onDevice(new Float32Array(65_536));
      const target = onDevice(allocateBuffer(other, 65_536));
      runner.run(launches.castKernel(source(), wide), launches.castKernel(source(), target));
      expectSame(new Uint32Array(fromDevice<Float32Array>(wide).buffer), widened[dtype]);
      expectSame(fromDevice<Float16Buffer>(target), widened[dtype].map(narrow[other]));
    });

    test.each(['float16', 'bfloat16'] as const)('float32 to %s, to nearest and ties to even', (dtype) => {
      // Every number of the format, half-way to the next, and just beside both; then a ladder of what is subnormal in
      // float16 alone, where half-way is elsewhere.
      const half = dtype === 'float16' ? 0x1000 : 0x8000;
      const offsets = [-1, 0, half, half + 1];
      const source = new Uint32Array(4 * 65_536 + 4096);
      for (let i = 0; i < 4 * 65_536; i++) source[i] = (widened[dtype][i >> 2] as number) + (offsets[i & 3] as number);
      for (let i = 0; i < 4096; i++) source[4 * 65_536 + i] = 0x32f00000 + i * 0x1800;
      const target = onDevice(allocateBuffer(dtype, source.length));
      runner.run(launches.castKernel(onDevice(new Float32Array(source.buffer)), target));
      expectSame(fromDevice<Float16Buffer>(target), source.map(narrow[dtype]));
    });
  });

  describe.each(FLOATS)('on %s', (dtype) => {
    test('scale multiplies and rounds once', () => {
      const cases = SIZES.map((length) => {
        const values = draw(dtype, length, 1);
        return { values, elements: onDevice(values) };
      });
      runner.run(...cases.map(({ elements }) => launches.scaleKernel(elements, 0.375)));
      for (const { values, elements } of cases) {
        const expected = floats(values).map((value) => value * 0.375);
        expectSame(floats(fromDevice(elements)), stored(dtype, expected));
      }
    });

    test.each([1, -0.3])('add_scaled adds %d times other numbers', (factor) => {
      const cases = SIZES.map((length) => {
        const values = draw(dtype, length, 2);
        return { values, elements: onDevice(values), added: draw(dtype, length, 3) };
      });
      runner.run(...cases.map(({ elements, added }) => launches.addScaledKernel(elements, onDevice(added), factor)));
      for (const { values, elements, added } of cases) {
        const products = floats(added).map((value) => value * Math.fround(factor));
        const expected = floats(values).map((value, i) => value + (products[i] as number));
        expectSame(floats(fromDevice(elements)), stored(dtype, expected));
      }
    });

    test('unscale multiplies into float32 and says whether anything is not finite', () => {
      const cases = [
        { values: storeValues(dtype, [1, -2, 0.5]), factor: 0.25 },
        { values: storeValues(dtype, [1, NaN]), factor: 1 },
        { values: storeValues(dtype, [0, -Infinity, ...new Float32Array(9000)]), factor: 1 },
        { values: storeValues(dtype, [60_000]), factor: 1e38 },
        { values: storeValues(dtype, []), factor: 1 },
      ].map((given) => {
        const target = onDevice(new Float32Array(given.values.length));
        return { ...given, target, overflow: onDevice(Int32Array.of(0)) };
      });
      runner.run(
        ...cases.map(({ values, target, factor, overflow }) => {
          // One block, so that threads go on from what is not finite to what is.
          return { ...launches.unscaleKernel(onDevice(values), target, factor, overflow), gridSize: 1 };
        }),
      );
      for (const { values, target, factor, overflow } of cases) {
        const expected = new Float32Array(values.length);
        const isFinite = typescriptKernels.scaleFinite(expected, floats(values), Math.fround(factor));
        expectSame(fromDevice<Float32Array>(target), expected);
        expect(fromDevice(overflow)).toEqual(Int32Array.of(isFinite ? 0 : 1));
      }
    });

    test('the sum of squares is that of another order, to the rounding of float64', () => {
      const cases = SIZES.map((length) => {
        const finite = floats(draw(dtype, length, 4)).map((value) => (Number.isFinite(value) ? value : 6e4));
        const values = storeValues(dtype, finite);
        const partials = onDevice(new Float64Array(launches.partialCount(length)));
        return { values, partials, total: onDevice(Float64Array.of(-1)) };
      });
      runner.run(...cases.map(({ values, partials }) => launches.sumSquaresKernel(onDevice(values), partials)));
      runner.run(...cases.map(({ partials, total }) => launches.sumPartialsKernel(partials, total)));
      for (const { values, total } of cases) {
        const expected = floats(values).reduce((sum, value) => sum + value * value, 0);
        const [sum] = fromDevice<Float64Array>(total);
        expect(Math.abs((sum as number) - expected)).toBeLessThanOrEqual(1e-12 * expected);
      }
    });
  });

  test('threads that take several elements leave what threads with one leave', () => {
    const lengths = [1, 255, 256, 769, 1023, 1024, 1025, 2817, 10_007];
    const cases = lengths.flatMap((length) => [false, true].map((isSmall) => makeAll(length, isSmall)));
    runner.run(...cases.flatMap(({ all }) => all));
    for (const [i, { results }] of cases.entries()) {
      if (i % 2 === 0) continue;
      results.forEach((elements, k) => {
        const wide = fromDevice((cases[i - 1] as (typeof cases)[0]).results[k] as DeviceElements);
        expect({ i, k, isSame: isSameBits(fromDevice(elements), wide) }).toEqual({ i, k, isSame: true });
      });
    }
  });

  /** Launches of kernels with and without loads ahead of time; with a small grid, one of a single block. */
  function makeAll(length: number, isSmall: boolean) {
    const fresh = (): DeviceElements => onDevice(draw('float32', length, 5));
    const [scaled, added, filled, unscaled] = [fresh(), fresh(), fresh(), fresh()];
    const half = onDevice(allocateBuffer('bfloat16', length));
    const overflow = onDevice(Int32Array.of(0));
    const all = [
      launches.scaleKernel(scaled, 3),
      launches.addScaledKernel(added, fresh(), 0.5),
      launches.fillKernel(filled, 7),
      launches.castKernel(fresh(), half),
      launches.unscaleKernel(fresh(), unscaled, 2, overflow),
    ].map((launch) => (isSmall ? { ...launch, gridSize: 1 } : launch));
    return { all, results: [scaled, added, filled, half, unscaled, overflow] };
  }

  test('an unscale in place, and a flag that was set before stays set', () => {
    const [values, overflow] = [onDevice(Float32Array.of(4, 8)), onDevice(Int32Array.of(1))];
    runner.run(launches.unscaleKernel(values, values, 0.5, overflow));
    expect(fromDevice(values)).toEqual(Float32Array.of(2, 4));
    expect(fromDevice(overflow)).toEqual(Int32Array.of(1));
  });

  test('a sum is the same bits every time', () => {
    const values = onDevice(Float32Array.from({ length: 10_007 }, (_unused, i) => Math.sin(i)));
    const sums = [1, 2].map(() => {
      const partials = onDevice(new Float64Array(launches.partialCount(values.length)));
      runner.run(launches.sumSquaresKernel(values, partials));
      return fromDevice(partials);
    });
    expect(sums[0]).toEqual(sums[1]);
  });

  test.each([
    ['float32', -0],
    ['float32', NaN],
    ['float16', 0.1],
    ['bfloat16', -3.3],
    ['int32', -7],
  ] as const)('fill of %s with %d', (dtype, value) => {
    const all = SIZES.map((length) => onDevice(allocateBuffer(dtype, length)));
    runner.run(...all.map((elements) => launches.fillKernel(elements, value)));
    for (const elements of all) {
      const expected = storeValues(dtype, new Float64Array(elements.length).fill(value));
      expectSame(floats(fromDevice(elements)), floats(expected));
    }
  });

  test.each(['float32', 'bfloat16'] as const)('segments of %s pack into a bucket, and back', (dtype) => {
    // The long one is copied in pieces.
    const lengths = [0, 1, 31, 257, 40_007, 3];
    let [sourceStart, targetStart] = [5, 2];
    const segments = lengths.map((length): Segment => {
      const segment = { sourceStart, length, targetStart };
      sourceStart += length + 3;
      targetStart += length;
      return segment;
    });
    const source = storeValues(
      dtype,
      Float64Array.from({ length: sourceStart }, (_unused, i) => i % 251),
    );
    const tensors = onDevice(source);
    const bucket = onDevice(allocateBuffer(dtype, targetStart + 1));
    runner.run(copySegmentsKernel(tensors, bucket, onDevice(segmentTable(segments))));

    const expected = allocateBuffer(dtype, targetStart + 1) as Uint16Array;
    for (const { sourceStart: from, length, targetStart: to } of segments) {
      expected.set(source.subarray(from, from + length) as Uint16Array, to);
    }
    expectSame(fromDevice<Float16Buffer>(bucket), expected);

    const back = segments.map(({ sourceStart: to, length, targetStart: from }) => {
      return { sourceStart: from, length, targetStart: to };
    });
    const unpacked = onDevice(allocateBuffer(dtype, sourceStart));
    runner.run(copySegmentsKernel(bucket, unpacked, onDevice(segmentTable(back))));
    const wanted = new Float32Array(sourceStart);
    for (const { sourceStart: from, length } of segments) {
      wanted.set(floats(source).subarray(from, from + length), from);
    }
    expectSame(floats(fromDevice(unpacked)), wanted);
  });

  describe('the updates', () => checkUpdates(runner));
});
