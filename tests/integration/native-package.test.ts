/**
 * The addon's package as a stranger gets it: packed, then installed by npm into a scratch folder, without a network and with
 * no program but node on the path.
 */
import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
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
import { basename, delimiter, join, resolve } from 'node:path';
import { INTERFACE_VERSION } from '../../src/backend/nccl/addon';
import { describeNative } from '../helpers/native-build';

const root = resolve(__dirname, '../..');
const source = join(root, 'native-nccl');
const prebuiltFolder = join('prebuilds', `${process.platform}-${process.arch}`);

// npm takes seconds on a busy machine; the limit is for hangs.
jest.setTimeout(120_000);

/** npm's own script, as the scratch folder's path has no npm. */
function npmScript(): string {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const found = folders.map((folder) => join(folder, 'npm')).find((path) => existsSync(path));
  if (found === undefined) throw new Error('there is no npm on the path');
  return realpathSync(found);
}

interface Scratch {
  readonly folder: string;
  /** Pack a folder; the tarball's path and the paths of its files. */
  pack(folder: string): { readonly tarball: string; readonly files: readonly string[] };
  /** Install tarballs into `project`, and give what npm said. */
  install(...tarballs: readonly string[]): string;
  /** Run a script there and give what it printed. */
  node(script: string): string;
  remove(): void;
}

function makeScratch(): Scratch {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'lockstep-native-')));
  const project = join(folder, 'project');
  const path = join(folder, 'path');
  mkdirSync(project);
  mkdirSync(path);
  symlinkSync(process.execPath, join(path, 'node'));
  writeFileSync(join(project, 'package.json'), '{ "name": "scratch", "private": true }');
  const env = { ...process.env, PATH: path, LOCKSTEP_NCCL_ADDON: '', npm_config_cache: join(folder, 'cache') };
  const run = (cwd: string, ...args: readonly string[]): string =>
    execFileSync(process.execPath, args, { cwd, env, encoding: 'utf8', stdio: 'pipe', timeout: 60_000 });
  const npm = npmScript();
  const quiet = ['--no-audit', '--no-fund', '--no-update-notifier'];
  return {
    folder,
    pack(packed) {
      const printed = run(packed, npm, 'pack', '--ignore-scripts', '--json', '--pack-destination', folder);
      const [report] = JSON.parse(printed) as [{ filename: string; files: { path: string }[] }];
      return { tarball: join(folder, report.filename), files: report.files.map((file) => file.path).sort() };
    },
    install: (...tarballs) => run(project, npm, 'install', '--offline', '--foreground-scripts', ...quiet, ...tarballs),
    node: (script) => run(project, '-e', script),
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}

/** A copy of the package's folder without what is built in it. @param binary to put where prebuildify puts it */
function stage(scratch: Scratch, binary?: string): string {
  const staged = join(scratch.folder, binary === undefined ? 'without-binary' : 'with-binary');
  const isBuilt = (path: string): boolean => ['build', 'prebuilds', 'node_modules'].includes(basename(path));
  cpSync(source, staged, { recursive: true, filter: (path) => !isBuilt(path) });
  if (binary !== undefined) {
    mkdirSync(join(staged, prebuiltFolder), { recursive: true });
    copyFileSync(binary, join(staged, prebuiltFolder, 'lockstep-nccl.glibc.node'));
  }
  return staged;
}

/** What installing the package fetches from the registry otherwise. */
const packDependencies = (scratch: Scratch): string =>
  scratch.pack(join(root, 'node_modules', 'node-gyp-build')).tarball;

/** Files of tests and builds, of the stand-ins, and of vendors. */
const forbidden =
  /stand-?in|(^|\/)(tests?|scripts|build)\/|cpu|shim|fibers|\.test\.|\.mjs$|\.so(\.|$)|\.fatbin$|\.cubin$|nccl\.h$|cuda.*\.h$/i;

describe("the addon's package", () => {
  let scratch: Scratch;
  beforeAll(() => {
    scratch = makeScratch();
  });
  afterAll(() => scratch?.remove());

  test('holds its sources, texts and kernels, and nothing of tests or vendors', () => {
    const { files } = scratch.pack(stage(scratch));
    expect(files.filter((path) => forbidden.test(path))).toEqual([]);
    expect(files.filter((path) => !path.includes('/'))).toEqual(
      ['LICENSE-APACHE', 'LICENSE-MIT', 'README.md', 'binding.gyp', 'index.d.ts', 'index.js', 'package.json'].sort(),
    );
    const others = files.filter((path) => path.includes('/') && !/^src\/[\w-]+\.(cc|h)$/.test(path));
    expect(others).toEqual(['kernels/kernels.cu', 'kernels/kernels.ptx']);
  });

  test('has no script that npm runs when it is installed', () => {
    const manifest = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8')) as {
      gypfile?: boolean;
      scripts: Record<string, string>;
    };
    expect(manifest.gypfile).toBe(false); // else npm compiles wherever it sees binding.gyp
    const run = ['preinstall', 'install', 'postinstall', 'prepare', 'preprepare', 'postprepare', 'dependencies'];
    expect(Object.keys(manifest.scripts).filter((name) => run.includes(name))).toEqual([]);
  });

  test('installs where it has no binary, and says when it is loaded what is missing and how to build it', () => {
    scratch.install(scratch.pack(stage(scratch)).tarball, packDependencies(scratch));
    const message = scratch.node(`try { require('lockstep-nccl') } catch (error) { console.log(error.message) }`);
    expect(message).toContain(`no binary for ${process.platform}-${process.arch}`);
    expect(message).toContain(join('lockstep-nccl', 'prebuilds'));
    expect(message).toContain('node-gyp rebuild');
  });

  test('a binary that a variable names is the only one that is tried', () => {
    const message = scratch.node(
      `process.env.LOCKSTEP_NCCL_ADDON = '/nowhere/addon.node';
       try { require('lockstep-nccl') } catch (error) { console.log(error.message) }`,
    );
    expect(message).toContain('LOCKSTEP_NCCL_ADDON names /nowhere/addon.node, which is not there');
  });
});

describeNative("the addon's package with a binary", ['addon'], (build) => {
  let scratch: Scratch;
  beforeAll(() => {
    scratch = makeScratch();
    const staged = stage(scratch, join(build, 'lockstep-nccl.node'));
    scratch.install(scratch.pack(staged).tarball, packDependencies(scratch));
  });
  afterAll(() => scratch?.remove());

  test('installs and loads without a compiler, and a library that is missing is said, not thrown', () => {
    const script = `
      const addon = require('lockstep-nccl');
      const probe = addon.probe({ cuda: ['/nowhere/libcuda.so.1'], nccl: ['/nowhere/libnccl.so.2'] });
      console.log(JSON.stringify({ interfaceVersion: addon.INTERFACE_VERSION, probe }));`;
    expect(JSON.parse(scratch.node(script))).toEqual({
      interfaceVersion: INTERFACE_VERSION,
      probe: {
        cuda: { isLoaded: false, tried: ['/nowhere/libcuda.so.1'], error: expect.stringContaining('/nowhere/libcuda') },
        nccl: { isLoaded: false, tried: ['/nowhere/libnccl.so.2'], error: expect.stringContaining('/nowhere/libnccl') },
        deviceCount: 0,
      },
    });
  });

  test('has every function that its types declare, and no other', () => {
    const types = readFileSync(join(source, 'index.d.ts'), 'utf8');
    const declared = [...types.matchAll(/^export (?:function|const) (\w+)/gm)].map(([, name]) => name);
    const found = JSON.parse(scratch.node(`console.log(JSON.stringify(Object.keys(require('lockstep-nccl'))))`));
    expect(found.sort()).toEqual(declared.sort());
  });

  test('a binary with another interface is refused, with both numbers', () => {
    const script = `
      const Module = require('module');
      const load = Module._extensions['.node'];
      Module._extensions['.node'] = (module, path) => (load(module, path), (module.exports = { INTERFACE_VERSION: 99 }));
      try { require('lockstep-nccl') } catch (error) { console.log(error.message) }`;
    expect(scratch.node(script)).toContain(`has the interface 99, and this package needs ${INTERFACE_VERSION}`);
  });

  test('a binary that the loader refuses is said in its words', () => {
    const broken = join(scratch.folder, 'broken.node');
    writeFileSync(broken, 'not a binary');
    const script = `
      process.env.LOCKSTEP_NCCL_ADDON = ${JSON.stringify(broken)};
      try { require('lockstep-nccl') } catch (error) { console.log(error.message) }`;
    expect(scratch.node(script)).toMatch(/broken\.node cannot be loaded: .*(invalid ELF header|file too short)/);
  });
});
