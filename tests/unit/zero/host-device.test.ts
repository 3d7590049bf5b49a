/** The device of these tests notices what a real one would suffer from. */
import { HostDevice } from '../../helpers/host-device';

const values = (...numbers: number[]): Float32Array => Float32Array.from(numbers);

test('memory is NaN until it is written to, and again when it is free', async () => {
  const device = new HostDevice();
  const buffer = device.allocate('float32', 2);
  const host = values(1, 2);
  await device.download(buffer, host);
  expect(host).toEqual(values(NaN, NaN));
  const view = buffer.view(1, 1);
  await device.upload(values(3), view);
  buffer.dispose();
  expect(device.bytesInUse).toBe(8);
  await device.download(view, host.subarray(1));
  expect(host).toEqual(values(NaN, 3));
  view.dispose();
  expect(device.bytesInUse).toBe(0);
});

test('calls take effect later, in order, and hold the memory until then', async () => {
  const device = new HostDevice();
  const buffer = device.allocate('float32', 1);
  const source = values(1);
  const target = values(0);
  const calls = [device.upload(source, buffer), device.download(buffer, target)];
  source[0] = 2; // too early
  buffer.dispose();
  expect([target[0], device.bytesInUse]).toEqual([0, 4]);
  await Promise.all(calls);
  expect([target[0], device.bytesInUse]).toEqual([2, 0]);
});

test('what does not fit is refused, an update with the next promise', async () => {
  const device = new HostDevice({ capacity: 16 });
  const buffer = device.allocate('float32', 2);
  await expect(device.upload(values(1), buffer)).rejects.toThrow(/float32 \[1\] against float32 \[2\]/);
  await expect(new HostDevice().upload(values(1, 2), buffer)).rejects.toThrow(/another device/);
  const short = device.allocate('float32', 1);
  const sgd = { kind: 'sgd', lr: 1, momentum: 0, taken: 1, weightDecay: 0, nesterov: false, gradientScale: 1 } as const;
  device.update(sgd, { parameter: buffer, gradient: short, state: {} });
  await expect(device.upload(values(1, 2), buffer)).rejects.toThrow(/gradient has 1 elements/);
  expect(() => device.allocate('float32', 2)).toThrow(/no memory left for 8 bytes; 12 are in use/);
  short.dispose();
  await expect(device.upload(values(1), short)).rejects.toThrow(/disposed of/);
});
