import * as addonModule from '../../../../src/backend/nccl/addon';
import type { NcclAddon, Probe } from '../../../../src/backend/nccl/addon';
import { isNcclAvailable, ncclUnavailableReason } from '../../../../src/backend/nccl/availability';
import { loadNccl, ncclVersionText } from '../../../../src/backend/nccl/load-nccl';

const usable: Probe = {
  cuda: { isLoaded: true, path: 'libcuda.so.1', tried: ['libcuda.so.1'], version: 13000 },
  nccl: { isLoaded: true, path: '/venv/libnccl.so.2', tried: ['libnccl.so.2', '/venv/libnccl.so.2'], version: 23007 },
  deviceCount: 2,
};

/** The addon as far as loading it looks at it. */
function installAddon(probe: Probe, interfaceVersion = addonModule.INTERFACE_VERSION): NcclAddon {
  const addon = { INTERFACE_VERSION: interfaceVersion, probe: () => probe } as unknown as NcclAddon;
  jest.spyOn(addonModule, 'requireAddon').mockReturnValue(addon);
  return addon;
}

/** Node.js lets it be defined anew, but not assigned. */
function setPlatform(value: NodeJS.Platform): void {
  Object.defineProperty(process, 'platform', { value });
}

function failRequire(message: string, code?: string): void {
  jest.spyOn(addonModule, 'requireAddon').mockImplementation(() => {
    throw Object.assign(new Error(message), code === undefined ? {} : { code });
  });
}

describe('whether NCCL can be used', () => {
  const platform = process.platform;
  beforeEach(() => setPlatform('linux'));
  afterEach(() => {
    setPlatform(platform);
    jest.restoreAllMocks();
  });

  test('it can where the addon, both libraries and a device are there', () => {
    const addon = installAddon(usable);
    expect(isNcclAvailable()).toBe(true);
    expect(ncclUnavailableReason()).toBeUndefined();
    expect(loadNccl()).toEqual({ addon, probe: usable });
  });

  test.each([
    [
      'a driver that is not there',
      { ...usable, cuda: { isLoaded: false, tried: ['libcuda.so.1'], error: 'libcuda.so.1: no such file' } },
      [
        /the CUDA driver/,
        /looked for libcuda\.so\.1/,
        /no such file/,
        /Install NVIDIA's driver/,
        /LOCKSTEP_CUDA_LIBRARY/,
      ],
    ],
    [
      'NCCL that is not there',
      { ...usable, nccl: { isLoaded: false, tried: ['libnccl.so.2', 'libnccl.so'], error: 'not found' } },
      [/NCCL cannot be used/, /looked for libnccl\.so\.2, libnccl\.so\b/, /nvidia-nccl-cu13/, /LOCKSTEP_NCCL_LIBRARY/],
    ],
    [
      'NCCL that lacks a function',
      { ...usable, nccl: { ...usable.nccl, isLoaded: false, error: '/venv/libnccl.so.2 lacks the function ncclSend' } },
      [/\/venv\/libnccl\.so\.2/, /lacks the function ncclSend/],
    ],
    [
      'NCCL that is too old',
      { ...usable, nccl: { ...usable.nccl, isLoaded: false, version: 21805, error: 'old' } },
      [/NCCL 2\.18\.5 \(\/venv\/libnccl\.so\.2\) is too old: 2\.24\.3 or newer/, /LOCKSTEP_NCCL_LIBRARY/],
    ],
    [
      'no device',
      { ...usable, deviceCount: 0 },
      [/CUDA 13\.0\) found no device/, /nvidia-smi/, /CUDA_VISIBLE_DEVICES/],
    ],
    [
      'a driver that will not start without a device',
      {
        ...usable,
        cuda: { ...usable.cuda, isLoaded: false, error: 'cuInit returned 100 (CUDA_ERROR_NO_DEVICE)' },
        deviceCount: 0,
      },
      [/found no device/, /nvidia-smi/],
    ],
  ])('%s is said, and what to do', (_, probe, patterns) => {
    installAddon(probe);
    expect(isNcclAvailable()).toBe(false);
    for (const pattern of patterns) expect(ncclUnavailableReason()).toMatch(pattern);
  });

  test('another interface of the addon is said with both numbers, and its functions are not called', () => {
    const addon = installAddon(usable, 99);
    const probe = jest.spyOn(addon, 'probe');
    expect(ncclUnavailableReason()).toMatch(
      new RegExp(`interface 99, and this version of lockstep uses ${addonModule.INTERFACE_VERSION}`),
    );
    expect(probe).not.toHaveBeenCalled();
  });

  test('a package that is not installed is said', () => {
    failRequire("Cannot find module 'lockstep-nccl'\nRequire stack: ...", 'MODULE_NOT_FOUND');
    expect(ncclUnavailableReason()).toMatch(/lockstep-nccl is not installed\. .*npm install lockstep-nccl/);
  });

  test('a package that cannot load says so in its own words, also where one of its own modules is missing', () => {
    failRequire('lockstep-nccl: there is no binary for linux-riscv64');
    expect(ncclUnavailableReason()).toBe('lockstep-nccl: there is no binary for linux-riscv64');
    failRequire("Cannot find module 'node-gyp-build'", 'MODULE_NOT_FOUND');
    expect(ncclUnavailableReason()).toMatch(/node-gyp-build/);
  });

  test('another system than Linux is said without a look at the addon', () => {
    installAddon(usable);
    setPlatform('darwin');
    expect(ncclUnavailableReason()).toMatch(/Linux only, and this is darwin/);
    expect(addonModule.requireAddon).not.toHaveBeenCalled();
  });

  test.each([
    [22403, '2.24.3'],
    [23007, '2.30.7'],
    [2708, '2.7.8'],
    [20901, '2.9.1'],
  ])('NCCL version %d is %s', (version, text) => {
    expect(ncclVersionText(version)).toBe(text);
  });
});
