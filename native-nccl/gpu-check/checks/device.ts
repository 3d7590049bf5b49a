/** The libraries are there and new enough, and the device is what it says. */
import { expect } from '../bench';
import type { Check } from '../check';

/** The first release whose non-blocking sends report that they are not on the stream yet. */
const OLDEST_NCCL = 22_403;

export const deviceChecks: readonly Check[] = [
  {
    name: 'the driver and NCCL are found, and new enough',
    run(bench) {
      const { cuda, nccl } = bench.probe();
      bench.note('cuda', cuda);
      bench.note('nccl', nccl);
      expect(cuda.isLoaded, `the driver is not loaded: ${cuda.error}`);
      expect(nccl.isLoaded, `NCCL is not loaded: ${nccl.error}`);
      expect((nccl.version ?? 0) >= OLDEST_NCCL, `NCCL ${nccl.version} is older than ${OLDEST_NCCL}`);
    },
  },
  {
    name: 'NCCL is found without the help of python3',
    run(bench) {
      const hint = process.env['GPU_CHECK_NCCL_HINT'] ?? '';
      if (hint === '') bench.skip('python3 knows of no NCCL');
      const { nccl } = bench.probe();
      bench.note('used', nccl.path);
      bench.note('python3 names', hint);
      // main.ts hands the hint on only where nothing was found without it
      const isHelped = process.env['LOCKSTEP_NCCL_LIBRARY'] === hint;
      expect(nccl.isLoaded && !isHelped, `Lockstep did not find ${hint} by itself`);
    },
  },
  {
    name: 'device 0 says what it is',
    run(bench) {
      const { deviceCount } = bench.probe();
      const info = bench.addon.deviceInfo(0);
      bench.note('deviceCount', deviceCount);
      bench.note('device', info);
      expect(deviceCount >= 1, `the driver counts ${deviceCount} devices`);
      expect(info.name !== '' && info.totalBytes > 0, 'the device has no name or no memory');
      expect(/^[0-9a-f]{32}$/.test(info.uuid), `uuid '${info.uuid}' is not 32 hexadecimal digits`);
      expect(
        info.computeCapability[0] * 10 + info.computeCapability[1] >= 75,
        'the kernels need compute capability 7.5',
      );
    },
  },
  {
    name: 'it opens, with the kernels, and does nothing in good order',
    async run(bench) {
      const startedMs = performance.now();
      const device = bench.device();
      await bench.addon.synchronize(device, 10_000);
      bench.note('openMs', performance.now() - startedMs);
      const { reservedBytes, usedBytes, freeBytes, totalBytes, leakedCommunicators } = bench.addon.stats(device);
      bench.note('memory', { reservedBytes, usedBytes, freeBytes, totalBytes });
      expect(leakedCommunicators === 0, 'a communicator has leaked');
      expect(freeBytes > 0 && freeBytes <= totalBytes, `${freeBytes} of ${totalBytes} bytes are free`);
    },
  },
  {
    name: 'it opens again after it was closed',
    async run(bench) {
      for (let time = 0; time < 3; time++) {
        const device = bench.openDevice();
        const block = bench.addon.allocate(device, 1000);
        await bench.addon.upload(block, 0, new Uint8Array(1000).fill(time), 10_000);
        await bench.addon.closeDevice(device);
      }
    },
  },
];
