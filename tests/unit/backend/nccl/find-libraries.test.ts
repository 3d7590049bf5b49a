import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname, join } from 'node:path';
import { libraryPaths, ncclInPython } from '../../../../src/backend/nccl/find-libraries';

describe('where the libraries are looked for', () => {
  let prefix: string;
  const variables = ['LOCKSTEP_CUDA_LIBRARY', 'LOCKSTEP_NCCL_LIBRARY', 'VIRTUAL_ENV', 'CONDA_PREFIX', 'PATH'];
  let before: (string | undefined)[];

  beforeEach(() => {
    prefix = mkdtempSync(join(os.tmpdir(), 'lockstep-prefix-'));
    before = variables.map((name) => process.env[name]);
    for (const name of variables) delete process.env[name];
  });

  afterEach(() => {
    rmSync(prefix, { recursive: true, force: true });
    for (const [index, name] of variables.entries()) {
      if (before[index] === undefined) delete process.env[name];
      else process.env[name] = before[index];
    }
  });

  function makeFile(...parts: readonly string[]): string {
    const path = join(prefix, ...parts);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, '');
    return path;
  }

  test('the system comes before Python environments', () => {
    const wheel = makeFile('lib', 'python3.12', 'site-packages', 'nvidia', 'nccl', 'lib', 'libnccl.so.2');
    process.env['VIRTUAL_ENV'] = prefix;
    const { cuda, nccl } = libraryPaths();
    expect(cuda).toEqual(['libcuda.so.1']);
    expect(nccl.slice(0, 3)).toEqual(['libnccl.so.2', 'libnccl.so', wheel]);
  });

  test('a user without a home has none there, which is no error', () => {
    const homedir = jest.spyOn(os, 'homedir').mockImplementation(() => {
      throw new Error('uv_os_homedir returned ENOENT');
    });
    try {
      process.env['VIRTUAL_ENV'] = prefix;
      const path = makeFile('lib', 'libnccl.so.2');
      expect(libraryPaths().nccl).toContain(path);
      expect(homedir).toHaveBeenCalled();
    } finally {
      homedir.mockRestore();
    }
  });

  test('the active environments come before those of the user and the machine', () => {
    const virtual = makeFile('venv', 'lib', 'python3.11', 'site-packages', 'nvidia', 'nccl', 'lib', 'libnccl.so.2');
    const conda = makeFile('conda', 'lib', 'libnccl.so.2');
    process.env['VIRTUAL_ENV'] = join(prefix, 'venv');
    process.env['CONDA_PREFIX'] = join(prefix, 'conda');
    expect(libraryPaths().nccl.slice(2, 4)).toEqual([virtual, conda]);
  });

  test('the environment of the python3 on PATH is looked at, active or not', () => {
    makeFile('venv', 'bin', 'python3');
    const wheel = makeFile('venv', 'lib', 'python3.12', 'site-packages', 'nvidia', 'nccl', 'lib', 'libnccl.so.2');
    process.env['PATH'] = join(prefix, 'venv', 'bin');
    expect(libraryPaths().nccl.slice(2, 3)).toEqual([wheel]);
  });

  test('a path that a variable names is the only one', () => {
    makeFile('lib', 'python3.12', 'site-packages', 'nvidia', 'nccl', 'lib', 'libnccl.so.2');
    process.env['VIRTUAL_ENV'] = prefix;
    process.env['LOCKSTEP_CUDA_LIBRARY'] = '/nowhere/libcuda.so.1';
    process.env['LOCKSTEP_NCCL_LIBRARY'] = '/nowhere/libnccl.so.2';
    expect(libraryPaths()).toEqual({ cuda: ['/nowhere/libcuda.so.1'], nccl: ['/nowhere/libnccl.so.2'] });
  });

  test('an empty variable counts as unset', () => {
    process.env['LOCKSTEP_NCCL_LIBRARY'] = '';
    expect(libraryPaths().nccl.slice(0, 2)).toEqual(['libnccl.so.2', 'libnccl.so']);
  });

  test.each([
    ['NCCL alone', 'lib', 'site-packages', 'nccl'],
    ['CUDA 13', 'lib', 'site-packages', 'cu13'],
    ['CUDA 12', 'lib', 'site-packages', 'cu12'],
    ["Debian's folder", 'lib', 'dist-packages', 'nccl'],
    ["Fedora's folder", 'lib64', 'site-packages', 'nccl'],
  ])('a wheel of %s is found', (_, library, packages, folder) => {
    const path = makeFile(library, 'python3.12', packages, 'nvidia', folder, 'lib', 'libnccl.so.2');
    expect(ncclInPython([prefix])).toEqual([path]);
  });

  test('a newer Python comes first, by number', () => {
    const [old, recent] = ['python3.9', 'python3.13'].map((python) =>
      makeFile('lib', python, 'site-packages', 'nvidia', 'nccl', 'lib', 'libnccl.so.2'),
    );
    expect(ncclInPython([prefix])).toEqual([recent, old]);
  });

  test('what is not there is not named, and a prefix twice is one', () => {
    expect(ncclInPython([prefix, join(prefix, 'nowhere')])).toEqual([]);
    const path = makeFile('lib', 'libnccl.so.2');
    expect(ncclInPython([prefix, prefix])).toEqual([path]);
  });
});
