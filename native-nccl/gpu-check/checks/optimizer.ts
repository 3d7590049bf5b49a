/** Fused steps on the device against the loops of the optimizers themselves. */
import { Adam, AdamW, SGD, Tensor, type Optimizer } from 'lockstep';
import type { BackendDevice } from '../../../src/backend/backend-device';
import type { DeviceBuffer } from '../../../src/core/device-buffer';
import { allocateBuffer, dtypeOf, isHalfDType, isSameBits, type DType, type HostBuffer } from '../../../src/core/dtype';
import { FLAT_UPDATE_TOLERANCE } from '../../../src/core/flat-update';
import { Generator } from '../../../src/core/generator';
import { floatsOf } from '../../../src/tensor/operators/floats';
import { Storage } from '../../../src/tensor/storage';
import { storeValues } from '../../../tests/helpers/fill';
import { expect, type Bench } from '../bench';
import type { Check } from '../check';

const SEED = 20_262;
/** More than one block of threads, and no multiple of it. */
const SIZE = 10_007;
const STEPS = 3;
const FLOATS = ['float32', 'float16', 'bfloat16'] as const;

const parameters = (): Tensor[] => [Tensor.zeros([1], { requiresGrad: true })];

interface Values {
  /** The parameter, or its master. */
  readonly values: Float32Array;
  readonly state: Readonly<Record<string, Float32Array>>;
}

/** Numbers of many sizes, zeros among them, that a 16-bit float can hold too. */
function draw(random: Generator, dtype: DType): HostBuffer {
  const values = Float32Array.from({ length: SIZE }, (_, i) =>
    i % 50 === 0 ? 0 : random.nextNormal() * 10 ** (random.nextBelow(5) - 3),
  );
  return storeValues(dtype, values);
}

/** Some steps, each from where the optimizer's own loop has come to. */
async function compareSteps<Settings extends { lr: number }>(
  bench: Bench,
  optimizer: Optimizer<Settings>,
  dtype: DType,
  gradientDType: DType,
): Promise<number> {
  const device = await bench.backendDevice();
  const settings = optimizer.settingsOf(0);
  const random = new Generator(SEED);
  const own: Values = {
    values: draw(random, 'float32') as Float32Array,
    state: Object.fromEntries(optimizer.stateNames(settings).map((name) => [name, new Float32Array(SIZE)])),
  };
  let worst = 0;
  for (let step = 1; step <= STEPS; step++) {
    const before = own.values.slice();
    const gradient = draw(random, gradientDType);
    const update = optimizer.flatUpdate?.(settings, step);
    expect(update !== undefined, 'the optimizer has no fused form');
    const fused = await stepOnDevice(device, own, gradient, dtype, (target) => device.update(update, target));
    const slopes = floatsOf(Storage.of(gradient)) as Float32Array;
    optimizer.update({ parameter: own.values, gradient: slopes, state: own.state, step }, settings);
    worst = Math.max(worst, worstDifference(fused.values, own.values, before, before));
    for (const [name, expected] of Object.entries(own.state)) {
      worst = Math.max(worst, worstDifference(fused.state[name] as Float32Array, expected, slopes, before));
    }
  }
  return worst;
}

/** @returns what the device has made of a copy of the values */
async function stepOnDevice(
  device: BackendDevice,
  { values, state }: Values,
  gradient: HostBuffer,
  dtype: DType,
  update: (target: Parameters<BackendDevice['update']>[1]) => void,
): Promise<Values> {
  const buffers: DeviceBuffer[] = [];
  const put = async (data: HostBuffer): Promise<DeviceBuffer> => {
    const buffer = device.allocate(dtypeOf(data), data.length);
    buffers.push(buffer);
    await device.upload(data, buffer);
    return buffer;
  };
  const take = async (buffer: DeviceBuffer): Promise<HostBuffer> => {
    const data = allocateBuffer(buffer.dtype, buffer.length);
    await device.download(buffer, data);
    return data;
  };
  try {
    const isHalf = isHalfDType(dtype);
    const parameter = await put(storeValues(dtype, values));
    const master = isHalf ? await put(values) : undefined;
    const onDevice: Record<string, DeviceBuffer> = {};
    for (const [name, buffer] of Object.entries(state)) onDevice[name] = await put(buffer);
    update({ parameter, gradient: await put(gradient), master, state: onDevice });
    const found = (await take(master ?? parameter)) as Float32Array;
    if (isHalf) {
      expect(isSameBits(await take(parameter), storeValues(dtype, found)), 'the parameter is not its master, rounded');
    }
    const foundState: Record<string, Float32Array> = {};
    for (const [name, buffer] of Object.entries(onDevice)) foundState[name] = (await take(buffer)) as Float32Array;
    return { values: found, state: foundState };
  } finally {
    for (const buffer of buffers) buffer.dispose();
  }
}

/** Relative to the largest of the expected value, the change, and what went into it. */
function worstDifference(
  found: Float32Array,
  expected: Float32Array,
  first: Float32Array,
  second: Float32Array,
): number {
  return expected.reduce((worst, value, i) => {
    const scale = Math.max(Math.abs(value), Math.abs(first[i] as number), Math.abs(second[i] as number), 1e-30);
    const difference = Math.abs((found[i] as number) - value) / scale;
    return Number.isNaN(difference) ? Infinity : Math.max(worst, difference);
  }, 0);
}

function fusedCheck<Settings extends { lr: number }>(name: string, make: () => Optimizer<Settings>): Check {
  return {
    name: `${name}, of parameters and gradients of 32 and 16 bits, within ${FLAT_UPDATE_TOLERANCE}`,
    async run(bench) {
      let overall = 0;
      for (const dtype of FLOATS) {
        for (const gradientDType of FLOATS) {
          const worst = await compareSteps(bench, make(), dtype, gradientDType);
          expect(worst <= FLAT_UPDATE_TOLERANCE, `${dtype}, gradients of ${gradientDType}: off by ${worst}, relative`);
          overall = Math.max(overall, worst);
        }
      }
      bench.note('worstRelativeDifference', overall);
    },
  };
}

export const optimizerChecks: readonly Check[] = [
  fusedCheck('SGD', () => new SGD(parameters(), { lr: 0.1, weightDecay: 0.01 })),
  fusedCheck(
    'SGD with momentum and dampening',
    () => new SGD(parameters(), { lr: 0.1, momentum: 0.9, dampening: 0.3 }),
  ),
  fusedCheck('SGD with nesterov', () => new SGD(parameters(), { lr: 0.1, momentum: 0.9, nesterov: true })),
  fusedCheck('Adam', () => new Adam(parameters(), { lr: 0.01, weightDecay: 0.1 })),
  fusedCheck('AdamW', () => new AdamW(parameters(), { lr: 1e-3 })),
];
