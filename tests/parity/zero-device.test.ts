/** Shards on a device: the training of shards on the host, bit for bit but for the rounding of the kernels. */
import { runWorld } from '../../src/testing/index';
import type { ZeroOptions, ZeroPrecision, ZeroStage } from '../../src/zero/zero-options';
import { count } from '../helpers/counts';
import { runOnDevices } from '../helpers/host-device';
import { expectCloseRun } from './zero-device-bounds';
import { optimizers, trainOnDevice, type DeviceRun } from './zero-device-program';
import { plainRun } from './zero-device-tasks';

const STAGES: readonly ZeroStage[] = [0, 1, 2, 3];
const PRECISIONS: readonly ZeroPrecision[] = ['float32', 'bfloat16', 'float16'];
/** Ranks, by stage. */
const SIZES = [1, 3, 2, 3] as const;

function onHost(size: number, name: string, options: ZeroOptions): Promise<DeviceRun[]> {
  return runWorld(size, (world) => trainOnDevice(world, optimizers[name] as never, options), { portable: true });
}

function onDevice(
  size: number,
  name: string,
  options: ZeroOptions,
  arithmetic: 'float32' | 'float64',
): Promise<DeviceRun[]> {
  const program = optimizers[name] as never;
  const cuda = { ...options, shardDevice: 'cuda' } as const;
  return runOnDevices(size, (world) => trainOnDevice(world, program, cuda), { arithmetic, portable: true });
}

/** Each precision, optimizer and stage with each of the others' in the long run; in the short one all of them, one in so many. */
const oneIn = count('ZeRO shards on devices: of precisions, optimizers and stages one in', 7, 1);
const cases = PRECISIONS.flatMap((precision, p) =>
  Object.keys(optimizers).flatMap((name, o) =>
    STAGES.filter((stage) => (p + o + stage) % oneIn === 0).map((stage) => ({ precision, name, stage })),
  ),
);

test.each(cases)(
  'in $precision, $name, stage $stage: kernels that round like the loops give the bits of the host',
  async ({ precision, name, stage }) => {
    const size = SIZES[stage];
    const expected = await onHost(size, name, { stage, precision });
    const ranks = await onDevice(size, name, { stage, precision }, 'float64');
    expect(ranks.every(({ deviceBytes }) => deviceBytes > 0)).toBe(true);
    expect(ranks.map((rank) => ({ ...rank, deviceBytes: 0 }))).toEqual(expected);
  },
);

test.each(cases)(
  'in $precision, $name, stage $stage: kernels in float32 stay within their tolerance',
  async ({ precision, name, stage }) => {
    const expected = (await onHost(2, name, { stage, precision }))[0] as DeviceRun;
    const [first, second] = (await onDevice(2, name, { stage, precision }, 'float32')) as [DeviceRun, DeviceRun];
    expect([second.norms, second.parameters, second.state]).toEqual([first.norms, first.parameters, first.state]);
    expectCloseRun(plainRun(first), plainRun(expected), precision);
  },
);
