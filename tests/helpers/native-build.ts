/**
 * Native code for tests, compiled by native-nccl/scripts/build.mjs, which compiles only what has changed. Where there is no
 * compiler, the tests that need it are skipped, and say so.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { isLong } from './counts';
import { FOLDER_VARIABLE } from './test-build';

/** The folder of what was built, or why there is none. */
export type NativeBuild = { readonly folder: string } | { readonly reason: string };

const root = resolve(__dirname, '../..');
const nativeFolder = join(root, 'native-nccl');
/** build.mjs ends with it where there is no compiler. */
const NO_COMPILER = 3;
/** For hangs; a whole build takes a minute on a slow machine. */
const BUILD_LIMIT_MS = 600_000;

/** Set by native-nccl/scripts/sanitize.mjs, to the library that sanitized code needs loaded first. */
const sanitizer = process.env['LOCKSTEP_TEST_SANITIZE'];

/** The short run has no time for the optimizer; the long run, and the sanitizers, check the code as it is shipped. */
const variant = sanitizer !== undefined ? ['--sanitize'] : isLong ? [] : ['--quick'];

const builds = new Map<string, NativeBuild>();

/**
 * Build, once a process and, under Jest, once a run. Waits while another process builds. For the time before tests run: a
 * build takes longer than a test may.
 *
 * @param named targets of build.mjs: 'addon', 'stand-ins', 'tests', or options as '--sanitize'
 * @throws Error with the compiler's output where the code does not compile
 */
export function nativeBuild(...named: readonly string[]): NativeBuild {
  const targets = [...named, ...variant];
  const name = targets.join(' ');
  const known = builds.get(name);
  if (known !== undefined) return known;
  const made = storedBuild(name) ?? withLock(() => storedBuild(name) ?? storeBuild(name, build(targets)));
  builds.set(name, made);
  return made;
}

/** What a process needs to run on the stand-ins of the driver and of NCCL instead of a GPU. @param folder of `nativeBuild('addon', 'stand-ins')` */
export function standInEnvironment(folder: string): Record<string, string> {
  return {
    LOCKSTEP_NCCL_ADDON: join(folder, 'lockstep-nccl.node'),
    LOCKSTEP_CUDA_LIBRARY: join(folder, 'libcuda.so.1'),
    LOCKSTEP_NCCL_LIBRARY: join(folder, 'libnccl.so.2'),
    STANDIN_CUDA_DEVICES: '8',
    ...(sanitizer === undefined ? {} : { LD_PRELOAD: sanitizer }),
  };
}

/**
 * `describe` of tests that need native code. Without a compiler each of them is reported as skipped, and the reason printed.
 *
 * @param define gets the build's folder; it is empty where the tests are skipped
 */
export function describeNative(title: string, targets: readonly string[], define: (folder: string) => void): void {
  const made = nativeBuild(...targets);
  if ('folder' in made) {
    describe(title, () => define(made.folder));
    return;
  }
  process.stderr.write(`${title}: skipped, as ${made.reason}\n`);
  describe.skip(`${title} (skipped: ${made.reason})`, () => define(''));
}

function build(targets: readonly string[]): NativeBuild {
  const script = join(nativeFolder, 'scripts', 'build.mjs');
  const { status, stdout, stderr, error } = spawnSync(process.execPath, [script, ...targets], {
    cwd: root,
    encoding: 'utf8',
    timeout: BUILD_LIMIT_MS,
    maxBuffer: 64 * 1024 * 1024,
  });
  if (error) throw error;
  if (status === NO_COMPILER) return { reason: lastLine(stderr) || lastLine(stdout) || 'there is no C++ compiler' };
  if (status !== 0) throw new Error(`build.mjs ${targets.join(' ')} failed (exit ${status}):\n${stdout}${stderr}`);
  const folder = lastLine(stdout);
  if (!existsSync(folder)) throw new Error(`build.mjs named a folder that is not there: '${folder}'`);
  return { folder };
}

function lastLine(text: string): string {
  return text.trimEnd().split('\n').at(-1)?.trim() ?? '';
}

/** A build that another process of this run of Jest has made. */
function storedBuild(name: string): NativeBuild | undefined {
  const path = storedPath(name);
  return path !== undefined && existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as NativeBuild) : undefined;
}

function storeBuild(name: string, made: NativeBuild): NativeBuild {
  const path = storedPath(name);
  if (path === undefined) return made;
  writeFileSync(`${path}.${process.pid}`, JSON.stringify(made));
  renameSync(`${path}.${process.pid}`, path); // whole, or not there
  return made;
}

function storedPath(name: string): string | undefined {
  const folder = process.env[FOLDER_VARIABLE];
  return folder === undefined ? undefined : join(folder, `native-${name.replace(/[^\w-]+/g, '_')}.json`);
}

/** One build at a time in this checkout: each uses all cores, and two of one target would compile everything twice. */
function withLock<T>(action: () => T): T {
  const lock = join(nativeFolder, 'build', 'lock');
  mkdirSync(join(nativeFolder, 'build'), { recursive: true });
  const deadline = performance.now() + BUILD_LIMIT_MS;
  while (!takeLock(lock)) {
    if (performance.now() > deadline) throw new Error(`${lock} was held for ${BUILD_LIMIT_MS} ms; remove it`);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
  }
  try {
    return action();
  } finally {
    rmSync(lock, { force: true });
  }
}

/** The file holds the owner's process id; that of a process that is gone is taken away, and taken the next time. */
function takeLock(lock: string): boolean {
  try {
    writeFileSync(lock, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  try {
    const owner = Number(readFileSync(lock, 'utf8'));
    if (owner > 0 && !isRunning(owner)) rmSync(lock, { force: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error; // given back meanwhile
  }
  return false;
}

function isRunning(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
