/** Running build.mjs and what it made, for the scripts that check the code. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const scripts = dirname(fileURLToPath(import.meta.url));
/** The checkout that this package is part of. */
export const rootFolder = join(scripts, '..', '..');
/** build.mjs ends with it where there is no compiler. */
const NO_COMPILER = 3;
/** For hangs; a test takes seconds, sanitized some more. */
const TEST_LIMIT_MS = 300_000;

export function say(line) {
  process.stdout.write(`${line}\n`);
}

/** @returns `{ folder }`, `{ reason }` where there is no compiler, or `{ errors }` where the code does not compile */
export function build(...args) {
  const made = spawnSync(process.execPath, [join(scripts, 'build.mjs'), ...args], {
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  });
  if (made.status === NO_COMPILER) return { reason: lastLine(made.stderr) };
  if (made.status !== 0) return { errors: `${made.stdout}${made.stderr}` };
  return { folder: lastLine(made.stdout) };
}

/** Names of the test programs in a build's folder. */
export function testsIn(folder) {
  return readdirSync(folder)
    .filter((name) => name.endsWith('.test'))
    .sort();
}

/** Run a program to its end. @returns `{ isOk, how, output }`; `how` as 'exit 0' */
export function run(command, args = [], variables = {}, cwd = rootFolder) {
  const { status, signal, stdout, stderr, error } = spawnSync(command, args, {
    cwd,
    encoding: 'utf8',
    maxBuffer: 1 << 26,
    timeout: TEST_LIMIT_MS,
    killSignal: 'SIGKILL',
    env: { ...process.env, ...variables },
  });
  const how = error?.code === 'ETIMEDOUT' ? 'hangs' : signal ? `ends by ${signal}` : `exit ${status}`;
  return {
    isOk: status === 0,
    how: error && status === null && !signal ? String(error) : how,
    output: stdout + stderr,
  };
}

/** A library of the compiler's, as libasan.so; undefined where it has none. */
export function compilerLibrary(name) {
  const found = run(process.env.CXX || 'g++', [`-print-file-name=${name}`]).output.trim();
  return found.startsWith('/') && existsSync(found) ? found : undefined;
}

function lastLine(text) {
  return text.trimEnd().split('\n').at(-1) ?? '';
}
