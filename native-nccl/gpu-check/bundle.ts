/**
 * A folder that checks a GPU on a machine without Node and without network: `npm run gpu:bundle`, then `bash run.sh` in it.
 *
 *     tsx native-nccl/gpu-check/bundle.ts [--out .gpu] [--dry-run]
 *
 * --dry-run: with the CPU stand-ins of the driver and of NCCL instead of a GPU's, and with a link to Node.
 */
import { execFileSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  rmSync,
  lstatSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { copyPackages } from './copy-packages';
import { packNode, type NodeBinary } from './pack-node';

const root = resolve(__dirname, '..', '..');
const nativeFolder = join(root, 'native-nccl');
const gpuCheck = join('native-nccl', 'gpu-check');

/** What travels to a lent machine, with the repository beside it. */
const LARGEST_BYTES = 64 * 2 ** 20;
const MANIFEST = 'bundle.json';
const NODE = 'node.xz';

function main(): void {
  const { values } = parseArgs({
    options: { out: { type: 'string', default: join(root, '.gpu') }, 'dry-run': { type: 'boolean', default: false } },
  });
  const folder = resolve(values.out);
  const isDryRun = values['dry-run'];
  const packed = clear(folder);
  compile(join(folder, 'js'));
  copyPackages(root, ['lockstep-nccl'], join(folder, 'js', 'node_modules'));
  const built = buildNative(isDryRun ? ['addon', 'stand-ins'] : ['addon']);
  placeAddon(built, join(folder, 'js', 'node_modules', 'lockstep-nccl'));
  for (const file of ['run.sh', 'README.md']) cpSync(join(root, gpuCheck, file), join(folder, file));
  let node: NodeBinary | undefined;
  if (isDryRun) {
    symlinkSync(process.execPath, join(folder, 'node'));
    writeStandIns(folder, built);
  } else node = packNode(join(folder, NODE), packed);
  const manifest = { isDryRun, builtAt: new Date().toISOString(), source: describeSource(), node };
  writeFileSync(join(folder, MANIFEST), `${JSON.stringify(manifest, null, 2)}\n`);
  report(folder);
}

/** Empty the folder, but for a Node that was packed before. @returns which one that is */
function clear(folder: string): NodeBinary | undefined {
  mkdirSync(folder, { recursive: true });
  const entries = readdirSync(folder);
  const manifest = join(folder, MANIFEST);
  // even a bundle that is not finished is known as one
  if (entries.length === 0) writeFileSync(manifest, '{}\n');
  if (!existsSync(manifest)) {
    throw new Error(`${folder} is not empty, and no bundle: it has no ${MANIFEST}. Name another folder, or remove it.`);
  }
  const { node } = JSON.parse(readFileSync(manifest, 'utf8')) as { readonly node?: NodeBinary };
  for (const entry of entries) {
    if (entry !== NODE && entry !== MANIFEST) rmSync(join(folder, entry), { recursive: true, force: true });
  }
  return existsSync(join(folder, NODE)) ? node : undefined;
}

/** The checks and everything that they import, with what they read; imports of `lockstep` are of this package itself. */
function compile(target: string): void {
  const compiler = join(root, 'node_modules', '@typescript', 'native', 'bin', 'tsc');
  // Types are checked by `npm run typecheck`.
  const args = ['-p', join(root, gpuCheck), '--noEmit', 'false', '--noCheck', '--outDir', target];
  execFileSync(process.execPath, [compiler, ...args], { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  cpSync(join(root, 'data', 'digits.csv.gz'), join(target, 'data', 'digits.csv.gz'));
  const exports = { '.': './src/index.js', './testing': './src/testing/index.js', './package.json': './package.json' };
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { readonly version: string };
  const own = { name: 'lockstep', version: manifest.version, type: 'commonjs', exports };
  writeFileSync(join(target, 'package.json'), `${JSON.stringify(own, null, 2)}\n`);
}

/** @returns the folder of what was built */
function buildNative(targets: readonly string[]): string {
  const script = join(nativeFolder, 'scripts', 'build.mjs');
  const output = execFileSync(process.execPath, [script, ...targets], {
    cwd: root,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return output.trim().split('\n').at(-1) ?? '';
}

/** Where the package looks for a binary of its platform. */
function placeAddon(built: string, packageFolder: string): void {
  const folder = join(packageFolder, 'prebuilds', `${process.platform}-${process.arch}`);
  mkdirSync(folder, { recursive: true });
  const addon = join(folder, 'lockstep-nccl.node');
  cpSync(join(built, 'lockstep-nccl.node'), addon);
  execFileSync('strip', ['--strip-unneeded', addon]);
}

function writeStandIns(folder: string, built: string): void {
  const target = join(folder, 'stand-ins');
  mkdirSync(target);
  for (const name of ['libcuda.so.1', 'libnccl.so.2', 'libkernels.so']) cpSync(join(built, name), join(target, name));
  const variables = {
    GPU_CHECK_STAND_INS: '1',
    LOCKSTEP_CUDA_LIBRARY: '$here/stand-ins/libcuda.so.1',
    LOCKSTEP_NCCL_LIBRARY: '$here/stand-ins/libnccl.so.2',
    STANDIN_CUDA_DEVICES: '1',
    STANDIN_CUDA_MEM_MB: '512',
    // one that allows two ranks on a device
    STANDIN_NCCL_VERSION: '23007',
    STANDIN_NCCL_MULTI_RANK_GPU: '1',
  };
  const lines = Object.entries(variables).map(([name, value]) => `export ${name}="\${${name}:-${value}}"`);
  writeFileSync(join(folder, 'stand-ins.sh'), `${lines.join('\n')}\n`);
}

/** What the bundle was made of, for its report. */
function describeSource(): { readonly commit: string; readonly hasChanges: boolean } | undefined {
  const git = (...args: string[]): string =>
    execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  try {
    return { commit: git('rev-parse', 'HEAD'), hasChanges: git('status', '--porcelain') !== '' };
  } catch {
    return undefined; // no git, or no checkout
  }
}

function report(folder: string): void {
  const sizes = readdirSync(folder).map((name) => ({ name, bytes: sizeOf(join(folder, name)) }));
  const total = sizes.reduce((sum, { bytes }) => sum + bytes, 0);
  const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const parts = sizes.filter(({ bytes }) => bytes > 2 ** 19).map(({ name, bytes }) => `${name} ${mebibytes(bytes)}`);
  process.stdout.write(`${folder}: ${mebibytes(total)} (${parts.join(', ')}); run: bash ${basename(folder)}/run.sh\n`);
  if (total > LARGEST_BYTES)
    throw new Error(`the bundle has ${mebibytes(total)}, and may have ${mebibytes(LARGEST_BYTES)}`);
}

/** Of files; a link is next to nothing. */
function sizeOf(path: string): number {
  const stat = lstatSync(path);
  if (!stat.isDirectory()) return stat.size;
  return readdirSync(path).reduce((sum, name) => sum + sizeOf(join(path, name)), 0);
}

main();
