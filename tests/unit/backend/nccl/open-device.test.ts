import type { Device } from '../../../../src/backend/nccl/addon';
import { OpenDevice } from '../../../../src/backend/nccl/open-device';
import { nativeFailure, type FakeRank } from '../../../helpers/fake-gpu';
import { FakeNccl } from '../../../helpers/fake-nccl';

const newGpu = (): FakeRank => new FakeNccl(1).rank(0);
const countOf = (gpu: FakeRank, name: string): number => gpu.calls.filter((each) => each === name).length;

/** Opening and closing take a while, as a driver's. */
function slow(gpu: FakeRank): void {
  const { openDevice, closeDevice } = gpu.addon;
  const pause = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  Object.assign(gpu.addon, {
    openDevice: async (...args: Parameters<typeof openDevice>): Promise<Device> => {
      await pause();
      return openDevice(...args);
    },
    closeDevice: async (device: Device): Promise<void> => {
      await pause();
      return closeDevice(device);
    },
  });
}

test('those who open a device at the same time share one, which the last of them closes', async () => {
  const gpu = newGpu();
  slow(gpu);
  const devices = await Promise.all([0, 1, 2].map(() => OpenDevice.open(gpu.addon, 0)));
  expect(new Set(devices).size).toBe(1);
  expect(countOf(gpu, 'openDevice')).toBe(1);
  const [device] = devices as [OpenDevice];
  await device.close();
  await device.close();
  expect([device.isClosed, gpu.numOpen]).toEqual([false, 1]);
  await device.close();
  expect([device.isClosed, gpu.numOpen]).toEqual([true, 0]);
});

test('devices of two numbers are two, and so are those of two copies of the addon', async () => {
  const [gpu, other] = [newGpu(), newGpu()];
  const opened = [OpenDevice.open(gpu.addon, 0), OpenDevice.open(gpu.addon, 1), OpenDevice.open(other.addon, 0)];
  const devices = await Promise.all(opened);
  expect(new Set(devices).size).toBe(3);
  expect([gpu.numOpen, other.numOpen]).toEqual([2, 1]);
  for (const device of devices) await device.close();
});

test('who opens while a device is being closed waits for that, and all of those share the next one', async () => {
  const gpu = newGpu();
  slow(gpu);
  const first = await OpenDevice.open(gpu.addon, 0);
  const closed = first.close();
  const [second, third] = await Promise.all([OpenDevice.open(gpu.addon, 0), OpenDevice.open(gpu.addon, 0)]);
  await closed;
  expect(second).not.toBe(first);
  expect(third).toBe(second);
  expect([countOf(gpu, 'openDevice'), gpu.numOpen]).toEqual([2, 1]);
  await second.close();
  await third.close();
  expect(gpu.numOpen).toBe(0);
});

test('a device that cannot be opened is the failure of all who wait for it, and is tried again by the next', async () => {
  const gpu = newGpu();
  slow(gpu);
  const failure = nativeFailure('CUDA', 'out of memory', { call: 'cuCtxCreate' });
  gpu.failNext('openDevice', failure);
  const outcomes = await Promise.allSettled([OpenDevice.open(gpu.addon, 0), OpenDevice.open(gpu.addon, 0)]);
  expect(outcomes.map((each) => each.status === 'rejected' && each.reason === failure)).toEqual([true, true]);
  const device = await OpenDevice.open(gpu.addon, 0);
  expect(gpu.numOpen).toBe(1);
  await device.close();
});
