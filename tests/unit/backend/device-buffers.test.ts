import { checkAllReduce } from '../../../src/backend/check-collective';
import { overlapStart, type Caller } from '../../../src/backend/check-arguments';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { DEVICE_BUFFER_BRAND, isDeviceBuffer, type DeviceBuffer } from '../../../src/core/device-buffer';
import { DTYPES, dtypeOf, tryDTypeOf } from '../../../src/core/dtype';
import { failureOf } from './mock-worlds';

/** `length` float32 elements from byte `byteOffset` of `memory`. */
function deviceBuffer(memory: object, byteOffset: number, length: number): DeviceBuffer {
  return {
    [DEVICE_BUFFER_BRAND]: true,
    device: 'cuda:0',
    dtype: 'float32',
    length,
    byteLength: 4 * length,
    byteOffset,
    memory,
    isDisposed: false,
    view: (start, count) => deviceBuffer(memory, byteOffset + 4 * start, count),
    dispose: () => undefined,
    [Symbol.dispose]: () => undefined,
  };
}

test('a device buffer has a dtype', () => {
  const buffer = deviceBuffer({}, 0, 3);
  expect([dtypeOf(buffer), tryDTypeOf(buffer), isDeviceBuffer(buffer)]).toEqual(['float32', 'float32', true]);
  expect(isDeviceBuffer(new Float32Array(1))).toBe(false);
});

test('a backend without a device refuses it, and says what to do', async () => {
  const backend = MockBackend.single();
  const error = await failureOf(backend.allReduce(deviceBuffer({}, 0, 3), 'Sum'));
  expect(error).toMatchObject({ name: 'UnsupportedError', context: { op: 'allReduce' } });
  expect(error.message).toMatch(
    /data: this backend moves buffers in host memory, got one on cuda:0\. Use World\.init\(\{ backend: 'nccl' \}\), or copy it to a host buffer first/,
  );
  await backend.close();
});

test('one with a device asks whether the buffer is its own', () => {
  const asked: string[] = [];
  const caller: Caller = {
    rank: 0,
    size: 1,
    timeoutMs: 1,
    capabilities: { devices: ['cpu', 'cuda'], dtypes: DTYPES, reduceOps: ['Sum'], progress: 'thread', bitwise: false },
    checkDeviceBuffer: (buffer, what) => void asked.push(`${what}: ${buffer.length}`),
  };
  const buffer = deviceBuffer({}, 0, 3);
  expect(checkAllReduce(caller, buffer, 'Sum').send).toBe(buffer);
  expect(asked).toEqual(['data: 3']);
});

test('device buffers overlap where they have the same memory, and bytes of it in common', () => {
  const memory = {};
  const buffer = deviceBuffer(memory, 8, 4);
  expect(overlapStart(deviceBuffer(memory, 16, 4), buffer)).toBe(8);
  expect(overlapStart(deviceBuffer(memory, 24, 4), buffer)).toBeUndefined();
  expect(overlapStart(deviceBuffer({}, 8, 4), buffer)).toBeUndefined();
  expect(overlapStart(deviceBuffer(memory, 8, 0), buffer)).toBeUndefined();
  expect(overlapStart(new Float32Array(4), buffer)).toBeUndefined();
});
