/** Shards on a device: the training of shards on the host, bit for bit but for the rounding of the kernels. */
import { runWorld } from '../../src/testing/index';
import type { ZeroOptions, ZeroPrecision, ZeroStage } from '../../src/zero/zero-options';
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

describe.each(PRECISIONS)('in %s', (precision) => {
  describe.each(Object.keys(optimizers))('%s', (name) => {
    test.each(STAGES)('stage %i: kernels that round like the loops give the bits of the host', async (stage) => {
      const size = SIZES[stage];
      const expected = await onHost(size, name, { stage, precision });
      const ranks = await onDevice(size, name, { stage, precision }, 'float64');
      expect(ranks.every(({ deviceBytes }) => deviceBytes > 0)).toBe(true);
      expect(ranks.map((rank) => ({ ...rank, deviceBytes: 0 }))).toEqual(expected);
    });

    test.each(STAGES)('stage %i: kernels in float32 stay within their tolerance', async (stage) => {
      const expected = (await onHost(2, name, { stage, precision }))[0] as DeviceRun;
      const [first, second] = (await onDevice(2, name, { stage, precision }, 'float32')) as [DeviceRun, DeviceRun];
      expect([second.norms, second.parameters, second.state]).toEqual([first.norms, first.parameters, first.state]);
      expectCloseRun(plainRun(first), plainRun(expected), precision);
    });
  });
});
