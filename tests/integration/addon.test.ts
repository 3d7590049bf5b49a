/** The addon over the stand-ins of the driver and of NCCL: what it does to a process, its event loop and its workers. */
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { count } from '../helpers/counts';
import { describeNative, standInEnvironment } from '../helpers/native-build';
import { runnable } from '../helpers/test-build';

interface Ended {
  readonly status: number | null;
  readonly signal: string | null;
  /** What the program printed, parsed. */
  readonly found: unknown[];
  readonly errors: string;
}

/** For hangs: a process that does not end is killed, which the tests see by its signal. */
const LIMIT_MS = 15_000;

describeNative('the addon', ['addon', 'stand-ins'], (build) => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'lockstep-addon-'));
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  function run(
    program: string,
    variables: Record<string, string> = {},
    options: readonly string[] = [],
  ): Promise<Ended> {
    const script = runnable(join(__dirname, 'addon-programs.ts'));
    const env = { ...process.env, ...standInEnvironment(build), ...variables };
    return new Promise((settle, fail) => {
      const args = [...script.options, ...options, ...script.files, program];
      const child = spawn(process.execPath, args, { env, timeout: LIMIT_MS, killSignal: 'SIGKILL' });
      let [printed, errors] = ['', ''];
      child.stdout.on('data', (bytes: Buffer) => (printed += bytes.toString()));
      child.stderr.on('data', (bytes: Buffer) => (errors += bytes.toString()));
      child.on('error', fail);
      child.on('close', (status, signal) => {
        const lines = printed.split('\n').filter((line) => line !== '');
        settle({ status, signal, found: lines.map((line) => JSON.parse(line) as unknown), errors });
      });
    });
  }

  const wellEnded = (...found: unknown[]): Ended => ({ status: 0, signal: null, found, errors: '' });
  const times = (name: string, short: number, long: number): number[] => [...Array(count(name, short, long)).keys()];

  test('the event loop ticks through every wait', async () => {
    const waits = ['commInit', 'collective', 'synchronize', 'upload', 'download', 'commSplit'];
    const ends = ['commDestroy of the child', 'commDestroy', 'closeDevice'];
    expect(await run('ticks')).toEqual(wellEnded([...waits, ...ends]));
  });

  test('it ticks while a device is opened, and a worker that is ended meanwhile takes its device along', async () => {
    const ended = await run('opens', { STANDIN_CUDA_LOAD_DELAY_US: '300000' });
    expect(ended).toEqual(wellEnded({ exitCode: 1, hasTicked: true, refusal: 'CUDA', numThreadsLeft: 0 }));
  });

  test('a process ends by itself when nothing is pending, though nothing was closed', async () => {
    expect(await run('idle')).toEqual(wellEnded('idle'));
  });

  test('a pending promise keeps the process alive until it settles', async () => {
    expect(await run('pending', { STANDIN_CUDA_JITTER_US: '2000' })).toEqual(wellEnded('settled'));
  });

  test('process.exit in the middle of a collective ends the process with its code', async () => {
    for (const seed of times('addon: exits in mid-collective', 2, 20)) {
      const ended = await run('exit', { STANDIN_CUDA_SEED: String(seed), STANDIN_CUDA_JITTER_US: '500' });
      expect(ended).toEqual({ ...wellEnded('exit'), status: 7 });
    }
  });

  test('an uncaught exception in the middle of a collective ends the process as in any program', async () => {
    const { status, signal, errors } = await run('throw');
    expect({ status, signal }).toEqual({ status: 1, signal: null });
    expect(errors).toMatch(/Error: a bug of the program/);
  });

  test('worker.terminate in the middle of a collective ends the worker alone', async () => {
    for (const seed of times('addon: workers ended in mid-collective', 2, 20)) {
      const ended = await run('terminate', { STANDIN_CUDA_SEED: String(seed), STANDIN_CUDA_JITTER_US: '500' });
      expect(ended).toEqual(wellEnded({ codes: [0, 1, 1, 1], value: 3 }));
    }
  });

  test('workers end in bounded time, though the abort of their communicators hangs', async () => {
    const ended = await run('terminate', { STANDIN_NCCL_ABORT_HANG_MS: '100000' });
    expect(ended).toEqual(wellEnded({ codes: [0, 1, 1, 1], value: 3 }));
  });

  test('four ranks as worker threads sum and end', async () => {
    const results = [0, 1, 2, 3].map((rank) => ({ rank, first: 10, last: 10 }));
    expect(await run('workers')).toEqual(wellEnded({ codes: [0, 0, 0, 0], results: expect.arrayContaining(results) }));
  });

  test('blocks that are collected while commands use them stay whole, and are given back then', async () => {
    const ended = await run('garbage', { STANDIN_CUDA_JITTER_US: '200' }, ['--expose-gc']);
    expect(ended).toEqual(wellEnded({ areRight: true, used: [0, 0] }));
  });

  test('a collective that does not end in time fails, and with it all others of its communicator', async () => {
    const ended = await run('timeout');
    expect(ended).toEqual(
      wellEnded({
        message: expect.stringMatching(/allReduce.*/),
        codes: ['TIMEOUT', 'ABORTED', 'ABORTED', 'ABORTED'],
        states: expect.arrayContaining([{ communicator: 'world', sequence: 0, label: 'allReduce', state: 'failed' }]),
        destroyed: 'fulfilled',
      }),
    );
  });

  test('what was released or closed says so, and closing again does nothing', async () => {
    const { status, found } = await run('closed');
    const { codes, records, queued } = found[0] as { codes: Record<string, string>; records: number; queued: number };
    expect(new Set(Object.values(codes))).toEqual(new Set(['CLOSED']));
    expect({ status, calls: Object.keys(codes).length, queued }).toEqual({ status: 0, calls: 9, queued: 0 });
    expect(records).toBeGreaterThan(0);
  });

  describe('wrong arguments', () => {
    let found: Record<string, string>;
    beforeAll(async () => {
      const ended = await run('misuse');
      if (ended.status !== 0) throw new Error(`misuse ended with ${ended.status ?? ended.signal}: ${ended.errors}`);
      found = ended.found[0] as Record<string, string>;
    });

    test('all throw at once, and say in which call', () => {
      const wrong = Object.entries(found).filter(([, error]) => !/^(TypeError|RangeError): \w+: /.test(error));
      expect(wrong).toEqual([]);
      expect(Object.keys(found).length).toBeGreaterThan(50);
    });

    test.each([
      ['a block as device', /^TypeError: allocate: device: expected a device of openDevice, got another handle/],
      ['a device as block', /^TypeError: release: block: expected a block of allocate/],
      ['a block among communicators', /^TypeError: commAbort: communicators\[1\]: expected a communicator/],
      ['negative bytes', /^RangeError: allocate: byteLength: expected a whole number from 0 to \d+, got -1/],
      ['bytes as text', /^TypeError: allocate: byteLength: expected a number, got '4'/],
      ['an upload past the end', /^RangeError: upload: byteOffset: .*64 bytes are in a block of 64, got 1/],
      ['shared memory', /^TypeError: upload: view: .*not shared/],
      ['resizable memory', /^TypeError: upload: view: .*fixed size/],
      ['memory given away', /^TypeError: upload: view: .*transferred/],
      ['a short id', /^RangeError: commInit: options\.id: expected 128 bytes/],
      ['an unknown kernel', /^RangeError: launch: kernel: .*got 'no_such_kernel'/],
      ['an unknown dtype', /^RangeError: collective: operations\[0\]\.dtype: expected one of int8, .*got 'float8'/],
      ['a count past the end', /^RangeError: collective: operations\[0\]\.send\.byteOffset: .*17 elements of 4 bytes/],
      ['a buffer of another device', /^RangeError: collective: operations\[0\]\.send\.block: .*communicator's device/],
      ['buffers that overlap', /^RangeError: collective: operations\[0\]: .*overlap/],
    ])('%s', (name, pattern) => {
      expect(found[name]).toMatch(pattern);
    });
  });

  describe('the libraries', () => {
    const reasonOf = async (variables: Record<string, string>): Promise<string> => {
      const { found } = await run('libraries', variables);
      return (found[0] as { reason?: string }).reason ?? `none: ${JSON.stringify(found)}`;
    };
    const standIn = (name: string): string => join(build, name);

    test('a library that is missing is named, with the variable that said so', async () => {
      const cuda = await reasonOf({ LOCKSTEP_CUDA_LIBRARY: '/nowhere/libcuda.so.1' });
      expect(cuda).toMatch(
        /the CUDA driver cannot be used \(looked for \/nowhere\/libcuda\.so\.1\).*LOCKSTEP_CUDA_LIBRARY/,
      );
      const nccl = await reasonOf({ LOCKSTEP_NCCL_LIBRARY: '/nowhere/libnccl.so.2' });
      expect(nccl).toMatch(/NCCL cannot be used \(looked for \/nowhere\/libnccl\.so\.2\).*LOCKSTEP_NCCL_LIBRARY/);
    });

    test('a library that lacks a function is named, with the function', async () => {
      const reason = await reasonOf({ LOCKSTEP_NCCL_LIBRARY: standIn('libkernels.so') });
      expect(reason).toMatch(/libkernels\.so lacks the function ncclGetVersion/);
      expect(await reasonOf({ LOCKSTEP_CUDA_LIBRARY: standIn('libkernels.so') })).toMatch(/lacks the function cu\w+/);
    });

    test('NCCL that is too old is named with both versions', async () => {
      const reason = await reasonOf({ STANDIN_NCCL_VERSION: '22402' });
      expect(reason).toMatch(/NCCL 2\.24\.2 \(.*libnccl\.so\.2\) is too old: 2\.24\.3 or newer/);
    });

    test('a driver without a device says so', async () => {
      expect(await reasonOf({ STANDIN_CUDA_DEVICES: '0' })).toMatch(/found no device/);
    });

    test('of two NCCLs the one that a variable names is taken, else the first; and reported with its version', async () => {
      const other = join(folder, 'lib', 'python3.12', 'site-packages', 'nvidia', 'nccl', 'lib', 'libnccl.so.2');
      mkdirSync(join(other, '..'), { recursive: true });
      copyFileSync(standIn('libnccl.so.2'), other);
      const chosen = async (variables: Record<string, string>): Promise<unknown> => {
        const ended = await run('libraries', { LD_LIBRARY_PATH: build, VIRTUAL_ENV: folder, ...variables });
        return (ended.found[0] as { nccl?: unknown }).nccl ?? ended;
      };
      const version = expect.any(Number) as number;
      expect(await chosen({ LOCKSTEP_NCCL_LIBRARY: other })).toEqual({
        isLoaded: true,
        path: other,
        tried: [other],
        version,
      });
      expect(await chosen({ LOCKSTEP_NCCL_LIBRARY: '' })).toEqual({
        isLoaded: true,
        path: 'libnccl.so.2',
        tried: ['libnccl.so.2'],
        version,
      });
    });
  });
});
