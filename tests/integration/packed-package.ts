import { execFile } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';

const root = resolve(__dirname, '../..');
const buildInputs = ['package.json', 'tsconfig.json', 'tsconfig.build.json', 'src'];
const shippedTexts = ['README.md', 'CHANGELOG.md', 'LICENSE-MIT', 'LICENSE-APACHE'];

/** How a child process ended; a non-zero exit is a result here, not an exception. */
export interface Outcome {
  readonly status: number;
  readonly output: string;
}

/** The package as a stranger gets it: packed from a copy of src/, unpacked into a scratch project's node_modules. */
export interface PackedPackage {
  /** Temporary folder of everything here, the copy that was built included. */
  readonly folder: string;
  /** The scratch project. */
  readonly project: string;
  /** `node_modules/lockstep` in it. */
  readonly installed: string;
  /** Paths in the tarball, sorted. */
  readonly files: readonly string[];
  /** Runs Node.js in the scratch project. */
  node(...args: readonly string[]): Promise<Outcome>;
  /** Writes a file into the scratch project. */
  write(path: string, text: string): void;
  remove(): void;
}

/** Builds in a copy, so that the checkout's own dist/ is neither needed nor touched. Uses no network. */
export async function packPackage(): Promise<PackedPackage> {
  // The real path, because module resolution follows links: /tmp is one on some systems.
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'lockstep-package-')));
  try {
    const stage = join(folder, 'stage');
    mkdirSync(stage);
    for (const name of [...buildInputs, ...shippedTexts].filter((name) => existsSync(join(root, name)))) {
      cpSync(join(root, name), join(stage, name), { recursive: true });
    }
    link(join(root, 'node_modules'), join(stage, 'node_modules'));
    const packed = await run('npm', ['pack', '--pack-destination', folder, '--json', '--silent'], stage);
    if (packed.status !== 0) throw new Error(`npm pack failed:\n${packed.output}`);

    const project = join(folder, 'project');
    const installed = join(project, 'node_modules', 'lockstep');
    mkdirSync(installed, { recursive: true });
    await unpack(folder, installed);
    installDependencies(installed, join(project, 'node_modules'));
    return {
      folder,
      project,
      installed,
      files: await listTarball(folder),
      node: (...args) => run(process.execPath, args, project),
      write: (path, text) => writeFileSync(join(project, path), text),
      remove: () => rmSync(folder, { recursive: true, force: true }),
    };
  } catch (error) {
    rmSync(folder, { recursive: true, force: true });
    throw error;
  }
}

export function readJson(path: string): Record<string, unknown> {
  return JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
}

/** The path of a tool among our own development dependencies. */
export function toolPath(...parts: readonly string[]): string {
  return join(root, 'node_modules', ...parts);
}

function tarball(folder: string): string {
  const { name, version } = readJson(join(root, 'package.json'));
  return join(folder, `${String(name)}-${String(version)}.tgz`);
}

async function unpack(folder: string, target: string): Promise<void> {
  const { status, output } = await run('tar', ['-xzf', tarball(folder), '-C', target, '--strip-components=1'], folder);
  if (status !== 0) throw new Error(`tar failed: ${output}`);
}

async function listTarball(folder: string): Promise<readonly string[]> {
  const { output } = await run('tar', ['-tzf', tarball(folder)], folder);
  const lines = output.split('\n').filter((line) => line !== '' && !line.endsWith('/'));
  return lines.map((line) => line.replace(/^package\//, '')).sort();
}

/** Links what the installed package declares, and the types of Node.js that a user of TypeScript has. */
function installDependencies(installed: string, modules: string): void {
  const { dependencies } = readJson(join(installed, 'package.json'));
  for (const name of [...Object.keys(dependencies as object), '@types/node']) {
    mkdirSync(dirname(join(modules, name)), { recursive: true });
    link(join(root, 'node_modules', name), join(modules, name));
  }
}

function link(target: string, path: string): void {
  symlinkSync(target, path, 'junction');
}

function run(command: string, args: readonly string[], cwd: string): Promise<Outcome> {
  const options = { cwd, maxBuffer: 64 * 1024 * 1024, timeout: 120_000, shell: process.platform === 'win32' };
  return new Promise((settle) => {
    execFile(command, args, options, (error, stdout, stderr) => {
      const status = error ? (typeof error.code === 'number' ? error.code : 1) : 0;
      settle({ status, output: error && stdout + stderr === '' ? error.message : stdout + stderr });
    });
  });
}
