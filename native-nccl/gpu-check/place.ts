/** Where a check keeps the buffers of a call: on the host, or on a backend's device. */
import type { BackendDevice } from '../../src/backend/backend-device';
import { isDeviceBuffer } from '../../src/core/device-buffer';
import { allocateBuffer, dtypeOf, type DataBuffer, type HostBuffer } from '../../src/core/dtype';

export interface Place {
  readonly name: string;
  /** A copy of `data`. */
  put(data: HostBuffer): Promise<DataBuffer>;
  /** What `buffer` holds now; gives it back. */
  take(buffer: DataBuffer): Promise<HostBuffer>;
}

export const onHost: Place = {
  name: 'host',
  put: async (data) => data.slice() as HostBuffer,
  take: async (buffer) => buffer as HostBuffer,
};

export function onDevice(device: BackendDevice): Place {
  return {
    name: device.name,
    async put(data) {
      const buffer = device.allocate(dtypeOf(data), data.length);
      await device.upload(data, buffer);
      return buffer;
    },
    async take(buffer) {
      if (!isDeviceBuffer(buffer)) throw new Error('it is not on a device');
      const data = allocateBuffer(buffer.dtype, buffer.length);
      await device.download(buffer, data);
      buffer.dispose();
      return data;
    },
  };
}
