/** Every kernel, as the driver compiled it from the PTX, against the formats and the arithmetic of this library. */
import { AdamW, SGD, Tensor } from 'lockstep';
import type { DeviceElements } from '../../../src/backend/nccl/kernel-launch';
import { copySegmentsKernel, segmentTable, type Segment } from '../../../src/backend/nccl/kernel-segments';
import { updateKernel } from '../../../src/backend/nccl/kernel-updates';
import * as launches from '../../../src/backend/nccl/kernels';
import { allocateBuffer, isHalfDType, type DType, type HostBuffer } from '../../../src/core/dtype';
import type { FlatUpdate } from '../../../src/core/flat-update';
import { Generator } from '../../../src/core/generator';
import { BFloat16Buffer, Float16Buffer } from '../../../src/core/half-buffer';
import { floatsOf } from '../../../src/tensor/operators/floats';
import { Storage } from '../../../src/tensor/storage';
import { storeValues } from '../../../tests/helpers/fill';
import { expect, isStandIn } from '../bench';
import type { Check } from '../check';
import { KernelBench, expectElements } from '../kernel-bench';
import { kernelText } from '../libraries';

const FLOATS = ['float32', 'float16', 'bfloat16'] as const;
/** None, one, a warp less one, a block and one, more blocks, and more elements than the largest grid has threads. */
const SIZES = [0, 1, 31, 257, 10_007, ...(isStandIn ? [] : [600_011])];
const SPECIAL = [0, -0, 1e-45, -1e-40, 6e-8, 65_504, 65_520, 3.4e38, -3.4e38, Infinity, -Infinity, NaN];

const launched = new Set<string>();

/** A check whose memory is given back, however it ends. */
function kernelCheck(name: string, run: (kernels: KernelBench) => Promise<void>): Check {
  return {
    name,
    async run(bench) {
      const kernels = new KernelBench(bench, launched);
      try {
        await run(kernels);
      } finally {
        await kernels.close();
      }
    },
  };
}

/** Numbers of many sizes, with what is special about float32 and the 16-bit formats among them. */
function draw(dtype: DType, length: number, seed: number): HostBuffer {
  const random = new Generator(seed);
  const values = Float64Array.from({ length }, (_, i) =>
    i % 20 === 7
      ? (SPECIAL[Math.floor(i / 20) % SPECIAL.length] as number)
      : random.nextNormal() * 2 ** ((i % 30) - 15),
  );
  return storeValues(dtype, values);
}

const floats = (buffer: HostBuffer): Float32Array => floatsOf(Storage.of(buffer)) as Float32Array;

const allHalves = Uint16Array.from({ length: 65_536 }, (_, bits) => bits);

async function casts(kernels: KernelBench): Promise<void> {
  const cast = async (source: HostBuffer, dtype: DType, what: string): Promise<void> => {
    const target = kernels.put(allocateBuffer(dtype, source.length));
    kernels.run(launches.castKernel(kernels.put(source), target));
    expectElements(await kernels.take(target), storeValues(dtype, floats(source)), what);
  };
  for (const halves of [Float16Buffer.fromBits(allHalves), BFloat16Buffer.fromBits(allHalves)]) {
    const [dtype, other] =
      halves instanceof Float16Buffer ? (['float16', 'bfloat16'] as const) : (['bfloat16', 'float16'] as const);
    await cast(halves, 'float32', `all ${dtype} to float32`);
    await cast(halves, other, `all ${dtype} to ${other}`);
    // each of them, half-way to the next one, and just beside both
    const halfWay = dtype === 'float16' ? 0x1000 : 0x8000;
    const wide = new Uint32Array(floats(halves).buffer);
    const near = Uint32Array.from([...wide].flatMap((bits) => [bits - 1, bits, bits + halfWay, bits + halfWay + 1]));
    await cast(new Float32Array(near.buffer), dtype, `float32 to ${dtype}`);
  }
  for (const length of SIZES) await cast(draw('float32', length, 5), 'bfloat16', `${length} float32 to bfloat16`);
}

async function scales(kernels: KernelBench, dtype: DType): Promise<void> {
  for (const length of SIZES) {
    const values = draw(dtype, length, 1);
    const scaled = kernels.put(values);
    kernels.run(launches.scaleKernel(scaled, 0.375));
    expectElements(
      await kernels.take(scaled),
      storeValues(
        dtype,
        floats(values).map((value) => value * 0.375),
      ),
      `scale of ${length}`,
    );

    const added = draw(dtype, length, 2);
    for (const factor of [1, -0.3]) {
      const target = kernels.put(values);
      kernels.run(launches.addScaledKernel(target, kernels.put(added), factor));
      // float32 after each operation, which is exact in float64 or rounds alike
      const products = floats(added).map((value) => value * Math.fround(factor));
      const expected = floats(values).map((value, i) => value + (products[i] as number));
      expectElements(await kernels.take(target), storeValues(dtype, expected), `${length} and ${factor} times as many`);
    }
  }
}

async function unscales(kernels: KernelBench, dtype: DType): Promise<void> {
  const cases = [
    { values: storeValues(dtype, [1, -2, 0.5]), factor: 0.25, isFinite: true },
    { values: storeValues(dtype, [1, NaN]), factor: 1, isFinite: false },
    { values: storeValues(dtype, [...new Float32Array(600_000), -Infinity]), factor: 1, isFinite: false },
    { values: storeValues(dtype, [60_000]), factor: 1e38, isFinite: false },
    { values: storeValues(dtype, []), factor: 1, isFinite: true },
  ];
  for (const [index, { values, factor, isFinite }] of cases.entries()) {
    for (const flag of [0, 1]) {
      const target = kernels.put(new Float32Array(values.length));
      const overflow = kernels.put(Int32Array.of(flag));
      kernels.run(launches.unscaleKernel(kernels.put(values), target, factor, overflow));
      const expected = floats(values).map((value) => value * Math.fround(factor));
      expectElements(await kernels.take(target), expected, `case ${index}`);
      expectElements(await kernels.take(overflow), Int32Array.of(isFinite ? flag : 1), `the flag of case ${index}`);
    }
  }
}

async function sums(kernels: KernelBench, dtype: DType): Promise<void> {
  for (const length of SIZES) {
    const finite = floats(draw(dtype, length, 4)).map((value) => (Math.abs(value) <= 60_000 ? value : 3));
    const values = kernels.put(storeValues(dtype, finite));
    const run = async (): Promise<Float64Array> => {
      const partials = kernels.put(new Float64Array(launches.partialCount(length)));
      const total = kernels.put(Float64Array.of(-1));
      kernels.run(launches.sumSquaresKernel(values, partials));
      kernels.run(launches.sumPartialsKernel(partials, total));
      return kernels.take<Float64Array>(total);
    };
    const [first, second] = [await run(), await run()];
    const expected = floats(storeValues(dtype, finite)).reduce((sum, value) => sum + value * value, 0);
    // float64 additions of numbers that are not negative, in another order
    const isClose = Math.abs((first[0] as number) - expected) <= 1e-12 * expected;
    expect(isClose, `the sum of ${length} squares is ${first[0]}, expected ${expected}`);
    expectElements(second, first, 'the sum a second time');
  }
}

async function fills(kernels: KernelBench): Promise<void> {
  const cases = [
    ['float32', -0],
    ['float32', NaN],
    ['float16', 0.1],
    ['bfloat16', -3.3],
    ['int32', -7],
  ] as const;
  for (const [dtype, value] of cases) {
    for (const length of SIZES) {
      const target = kernels.put(allocateBuffer(dtype, length));
      kernels.run(launches.fillKernel(target, value));
      const expected = storeValues(dtype, new Float64Array(length).fill(value));
      expectElements(await kernels.take(target), expected, `${length} ${dtype}`);
    }
  }
}

async function segments(kernels: KernelBench): Promise<void> {
  let [sourceStart, targetStart] = [5, 2];
  const list = [0, 1, 31, 257, 40_007, 3].map((length): Segment => {
    const segment = { sourceStart, length, targetStart };
    sourceStart += length + 3;
    targetStart += length;
    return segment;
  });
  for (const dtype of ['float32', 'bfloat16'] as const) {
    const source = storeValues(
      dtype,
      Float64Array.from({ length: sourceStart }, (_, i) => i % 251),
    );
    const target = kernels.put(allocateBuffer(dtype, targetStart + 1));
    kernels.run(copySegmentsKernel(kernels.put(source), target, kernels.put(segmentTable(list))));
    const expected = allocateBuffer(dtype, targetStart + 1);
    for (const { sourceStart: from, length, targetStart: to } of list) {
      (expected as Uint16Array).set(source.subarray(from, from + length) as Uint16Array, to);
    }
    expectElements(await kernels.take(target), expected, `segments of ${dtype}`);
  }
}

/** That the numbers are right is shown by the group 'optimizer'; here: all kernels, their sizes, and the skip flag. */
async function updates(kernels: KernelBench): Promise<void> {
  const leaf = [Tensor.zeros([1], { requiresGrad: true })];
  const [sgd, adamW] = [new SGD(leaf, { lr: 0.1, momentum: 0.9 }), new AdamW(leaf)];
  const numbers: readonly FlatUpdate[] = [
    sgd.flatUpdate(sgd.settingsOf(0), 1),
    adamW.flatUpdate(adamW.settingsOf(0), 1),
  ];
  for (const update of numbers) {
    for (const dtype of FLOATS) {
      for (const gradientDType of FLOATS) {
        for (const length of [0, 1, 10_007]) {
          const what = `${update.kind} of ${length} ${dtype} with ${gradientDType}`;
          await skipOrNot(
            kernels,
            update,
            storeValues(
              dtype,
              Float64Array.from({ length }, (_, i) => Math.sin(i)),
            ),
            gradientDType,
            what,
          );
        }
      }
    }
  }
}

async function skipOrNot(
  kernels: KernelBench,
  update: FlatUpdate,
  parameter: HostBuffer,
  gradientDType: DType,
  what: string,
): Promise<void> {
  const { length } = parameter;
  const names = update.kind === 'adam' ? ['expAvg', 'expAvgSq'] : ['momentumBuffer'];
  const run = async (skip: number | undefined): Promise<HostBuffer[]> => {
    const elements = kernels.put(parameter);
    const isHalf = isHalfDType(elements.dtype);
    const master = isHalf ? kernels.put(floats(parameter)) : undefined;
    const state = Object.fromEntries(
      names.map((name): [string, DeviceElements] => [name, kernels.put(new Float32Array(length))]),
    );
    const gradient = kernels.put(storeValues(gradientDType, new Float32Array(length).fill(0.5)));
    const flag = skip === undefined ? undefined : kernels.put(Int32Array.of(skip));
    kernels.run(updateKernel(update, { parameter: elements, gradient, master, state, skip: flag }));
    const written = [elements, ...(master === undefined ? [] : [master]), ...Object.values(state)];
    return Promise.all(written.map((each) => kernels.take(each)));
  };
  const [plain, taken, skipped] = [await run(undefined), await run(0), await run(1)];
  for (const [index, buffer] of plain.entries()) expectElements(taken[index] as HostBuffer, buffer, `${what}, flag 0`);
  expectElements(skipped[0] as HostBuffer, parameter, `${what}, flag 1`);
  for (const buffer of skipped.slice(-names.length))
    expectElements(buffer, new Float32Array(length), `${what}, flag 1`);
  const state = plain.at(-1) as Float32Array;
  expect(
    state.every((value) => value > 0),
    `${what} changed nothing`,
  );
}

export const kernelChecks: readonly Check[] = [
  kernelCheck('cast: all 16-bit numbers, and float32 to nearest and ties to even', casts),
  ...FLOATS.flatMap((dtype) => [
    kernelCheck(`scale and add_scaled of ${dtype}`, (kernels) => scales(kernels, dtype)),
    kernelCheck(`unscale of ${dtype}, with its overflow flag`, (kernels) => unscales(kernels, dtype)),
    kernelCheck(`sum_squares of ${dtype}, the same bits each time`, (kernels) => sums(kernels, dtype)),
  ]),
  kernelCheck('fill', fills),
  kernelCheck('copy_segments', segments),
  kernelCheck('sgd and adam: every pair of dtypes, and the skip flag', updates),
  {
    name: 'the checks above have run all kernels of the module',
    run(bench) {
      const names = [...kernelText().matchAll(/\.visible \.entry (\w+)\(/g)].map(([, name]) => name as string);
      bench.note('kernels', names.length);
      if (bench.isAfterFailure) bench.skip('checks before it were made in another process, as one has failed');
      const left = names.filter((name) => !launched.has(name));
      expect(names.length > 0 && left.length === 0, `not run: ${left.join(', ')}`);
    },
  },
];
