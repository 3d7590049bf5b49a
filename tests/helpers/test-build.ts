/**
 * src/ and tests/ as JavaScript, for the processes that tests start: through tsx a process takes three times as long to
 * start. Made once a run of Jest, by the first test that asks, in the folder that test-build-folder.ts makes and removes.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';

export const FOLDER_VARIABLE = 'LOCKSTEP_TEST_BUILD';

const root = resolve(__dirname, '../..');
/** For a compiler that hangs. */
const BUILD_LIMIT_MS = 55_000;
/** For a builder that died; longer, so that else all learn why. */
const LIMIT_MS = 60_000;

/** The folder that stands for the root of the checkout: `src/`, `tests/` and `node_modules/` are in it. */
export function testBuild(): string {
  const folder = process.env[FOLDER_VARIABLE];
  if (folder === undefined) throw new Error(`${FOLDER_VARIABLE} is not set: Jest's globalSetup sets it`);
  const [built, failed] = [join(folder, 'built'), join(folder, 'failed')];
  if (existsSync(built)) return built;
  if (isFirst(join(folder, 'lock'))) {
    try {
      build(join(folder, 'building'));
      renameSync(join(folder, 'building'), built);
    } catch (error) {
      writeFileSync(join(folder, 'why'), describe(error));
      renameSync(join(folder, 'why'), failed); // whole, or not there
      throw error;
    }
    return built;
  }
  const deadline = performance.now() + LIMIT_MS;
  while (!existsSync(built)) {
    if (existsSync(failed)) throw new Error(`the build in ${folder} failed: ${readFileSync(failed, 'utf8')}`);
    if (performance.now() > deadline) throw new Error(`no build came to be in ${folder} within ${LIMIT_MS} ms`);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
  }
  return built;
}

/** Options of node, and the form of each TypeScript file, for a process that runs `files`: outside Jest through tsx. */
export function runnable(...files: readonly string[]): { readonly options: string[]; readonly files: string[] } {
  if (process.env[FOLDER_VARIABLE] === undefined) return { options: ['--require', 'tsx/cjs'], files: [...files] };
  const built = testBuild();
  return { options: [], files: files.map((file) => join(built, relative(root, file)).replace(/\.ts$/, '.js')) };
}

/** Making a folder succeeds in one process only. */
function isFirst(lock: string): boolean {
  try {
    mkdirSync(lock);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/** The compiler writes its errors on its standard output. */
function describe(error: unknown): string {
  const { stdout } = error as { readonly stdout?: Buffer };
  return [String(error), stdout?.toString() ?? ''].join('\n');
}

function build(target: string): void {
  const compiler = join(root, 'node_modules', '@typescript', 'native', 'bin', 'tsc');
  // Types are checked by `npm run typecheck`.
  const args = ['-p', root, '--noEmit', 'false', '--noCheck', '--outDir', target];
  execFileSync(process.execPath, [compiler, ...args], { cwd: root, stdio: 'pipe', timeout: BUILD_LIMIT_MS });
  symlinkSync(join(root, 'node_modules'), join(target, 'node_modules'), 'junction');
  // what is built imports the package by its name, as users do
  const entries = { '.': './src/index.js', './testing': './src/testing/index.js', './package.json': './package.json' };
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as object;
  writeFileSync(join(target, 'package.json'), JSON.stringify({ ...manifest, exports: entries }));
}
