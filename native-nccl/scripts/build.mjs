/**
 * Build parts of this package with a C++ compiler alone; what programs use is built by node-gyp (binding.gyp).
 *
 *     node scripts/build.mjs <target...> [--only TEXT] [--sanitize[=thread]] [--quick] [--define NAME]...
 *
 *     addon      src/*.cc                   -> lockstep-nccl.node
 *     stand-ins  stand-in/{cuda,nccl}/*.cc, kernels/*.cc -> libcuda.so.1, libnccl.so.2, libkernels.so
 *     tests      test/*.test.cc (--only: those whose name contains the text) -> one executable each, and the stand-ins
 *
 * `--quick` compiles a library's sources as one, without the optimizer: a third of the time, for a run of tests.
 * Everything goes to build/<variant>/, whose path is the last line of output. `CXX` overrides g++.
 * Exit: 0 built, 1 the compiler found an error, 2 wrong arguments, 3 no compiler.
 */
import { execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const packageFolder = join(dirname(fileURLToPath(import.meta.url)), '..');
const buildFolder = join(packageFolder, 'build');
const objectFolder = join(buildFolder, 'objects');
const compiler = process.env.CXX || 'g++';
const parallelJobs = 2;

/** Ends the build; `exitCode` says why. */
class BuildError extends Error {
  constructor(exitCode, message) {
    super(message);
    this.exitCode = exitCode;
  }
}

function readArguments(args) {
  const options = { targets: new Set(), only: '', sanitizer: undefined, isQuick: false, defines: [] };
  for (let i = 0; i < args.length; i++) {
    if (args[i] === '--sanitize') options.sanitizer = 'address,undefined';
    else if (args[i] === '--sanitize=thread') options.sanitizer = 'thread';
    else if (args[i] === '--quick') options.isQuick = true;
    else if (args[i] === '--define') options.defines.push(args[++i]);
    else if (args[i] === '--only') options.only = args[++i];
    else if (['addon', 'stand-ins', 'tests'].includes(args[i])) options.targets.add(args[i]);
    else throw new BuildError(2, `build.mjs: unknown argument ${args[i]}`);
  }
  if (options.targets.size === 0) throw new BuildError(2, 'build.mjs: name a target: addon, stand-ins or tests');
  if (options.defines.includes(undefined) || options.only === undefined) {
    throw new BuildError(2, 'build.mjs: --define and --only need a value');
  }
  return options;
}

function variantName({ sanitizer, isQuick, defines }) {
  const kind = sanitizer === undefined ? 'plain' : sanitizer === 'thread' ? 'sanitize-thread' : 'sanitize';
  return [kind, ...(isQuick ? ['quick'] : []), ...defines].join('-');
}

function compilerVersion() {
  try {
    return execFileSync(compiler, ['-dumpfullversion', '-dumpmachine'], { encoding: 'utf8' });
  } catch {
    throw new BuildError(3, `build.mjs: no C++ compiler: ${compiler} cannot be run`);
  }
}

/** The .cc files of a folder of this package, sorted; none where there is no such folder. */
function sourcesIn(folder, suffix = '.cc') {
  const path = join(packageFolder, folder);
  if (!existsSync(path)) return [];
  const names = readdirSync(path).filter((name) => name.endsWith(suffix));
  return names.sort().map((name) => join(path, name));
}

/** A source file and, by `#include "..."`, all files of ours that it includes: path -> text. */
function closureOf(source, found = new Map()) {
  if (found.has(source)) return found;
  const text = readFileSync(source, 'utf8');
  found.set(source, text);
  for (const [, name] of text.matchAll(/^\s*#\s*include\s+"([^"]+)"/gm)) {
    const path = join(dirname(source), name);
    if (existsSync(path)) closureOf(path, found);
  }
  return found;
}

const includesNodeApi = (closure) =>
  [...closure.values()].some((text) => /#\s*include\s+<(napi|node_api)\.h>/.test(text));

/** abi.h alone is not the engine. */
const includesEngine = (closure) =>
  [...closure.keys()].some((path) => dirname(path) === join(packageFolder, 'src') && basename(path) !== 'abi.h');

function nodeApiFlags() {
  const require = createRequire(join(packageFolder, 'package.json'));
  const headers = dirname(require.resolve('node-api-headers/package.json'));
  const wrapper = dirname(require.resolve('node-addon-api/package.json'));
  return [
    ...['-isystem', join(headers, 'include'), '-isystem', wrapper],
    ...['-DNAPI_VERSION=8', '-DNODE_ADDON_API_CPP_EXCEPTIONS', '-DBUILDING_NODE_EXTENSION'],
    '-DNODE_GYP_MODULE_NAME=lockstep_nccl',
  ];
}

const hash = (...parts) => createHash('sha256').update(parts.join('\0')).digest('hex').slice(0, 24);

function run(what, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(compiler, args, { stdio: ['ignore', 'inherit', 'inherit'] });
    child.on('error', reject);
    child.on('exit', (code) => {
      if (code === 0) resolve();
      else reject(new BuildError(1, `build.mjs: ${compiler} failed on ${what}`));
    });
  });
}

class Build {
  constructor(options) {
    this.options = options;
    this.folder = join(buildFolder, variantName(options));
    this.version = compilerVersion();
    this.sanitizeFlags = options.sanitizer === undefined ? [] : [`-fsanitize=${options.sanitizer}`];
    mkdirSync(this.folder, { recursive: true });
    mkdirSync(objectFolder, { recursive: true });
  }

  /** Compile unless the cache has it; the path of the object. Objects are shared by all variants. */
  async object(source, optimization) {
    const closure = closureOf(source);
    const texts = [...closure.values()];
    // A define that no file of the closure mentions does not change the object.
    const defines = this.options.defines.filter((name) => texts.some((text) => text.includes(name)));
    const flags = [
      ...['-std=c++17', optimization, '-g', '-fPIC', '-pthread', '-fvisibility=hidden', '-Wall', '-Wextra'],
      // A multiplication and an addition stay two roundings, so that results do not depend on the compiler.
      '-ffp-contract=off',
      ...(this.options.sanitizer === undefined ? [] : [...this.sanitizeFlags, '-fno-omit-frame-pointer']),
      ...defines.map((name) => `-D${name}`),
      ...(includesNodeApi(closure) ? nodeApiFlags() : []),
    ];
    const names = [...closure.keys()].map((path) => relative(packageFolder, path));
    const object = join(objectFolder, `${basename(source)}-${hash(this.version, ...flags, ...names, ...texts)}.o`);
    if (!existsSync(object)) await this.produce(object, [...flags, '-c', source]);
    return object;
  }

  /** Several builds may run at once: a file appears whole or not at all. */
  async produce(output, args) {
    const partial = `${output}.${process.pid}.partial`;
    try {
      await run(basename(output), ['-o', partial, ...args]);
      renameSync(partial, output);
    } finally {
      rmSync(partial, { force: true });
    }
  }

  async objects(sources, optimization) {
    const objects = [];
    const queue = [...sources.entries()];
    const worker = async () => {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
        objects[next[0]] = await this.object(next[1], optimization);
      }
    };
    // All workers end before an error is thrown, so that no compiler outlives the build.
    const results = await Promise.allSettled(Array.from({ length: parallelJobs }, worker));
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
    return objects;
  }

  /** Link unless it was linked from the same objects before. `libraries` are names in the output folder. */
  async link(name, objects, flags, libraries = []) {
    const output = join(this.folder, name);
    const depends = libraries.filter((library) => existsSync(join(this.folder, library)));
    // Not for the addon, which would take the stand-ins that lie beside it for the system's libraries.
    const search = depends.length === 0 ? [] : ['-L', this.folder, '-Wl,-rpath,$ORIGIN'];
    const args = [
      ...['-pthread', ...this.sanitizeFlags, ...flags, ...objects],
      // A library that is not used is not needed at run time either.
      ...['-Wl,--as-needed', ...search, ...depends.map((library) => `-l:${library}`)],
      '-ldl',
    ];
    const key = hash(this.version, ...args);
    const keyFile = `${output}.key`;
    if (existsSync(output) && existsSync(keyFile) && readFileSync(keyFile, 'utf8') === key) return;
    await this.produce(output, args);
    writeFileSync(keyFile, key);
  }

  /** @param sources of a library */
  async libraryObjects(name, sources) {
    if (!this.options.isQuick) return this.objects(sources, '-O2');
    const all = join(objectFolder, `${name}.cc`);
    const partial = `${all}.${process.pid}.partial`;
    writeFileSync(partial, sources.map((source) => `#include "${relative(objectFolder, source)}"\n`).join(''));
    renameSync(partial, all);
    return this.objects([all], '-O0');
  }

  async addon() {
    const sources = sourcesIn('src');
    if (sources.length === 0) return skip('addon', 'no src/*.cc');
    await this.link('lockstep-nccl.node', await this.libraryObjects('addon', sources), ['-shared']);
  }

  async standIns() {
    const parts = [
      { name: 'libkernels.so', sources: sourcesIn('kernels'), libraries: [] },
      { name: 'libcuda.so.1', sources: sourcesIn('stand-in/cuda'), libraries: [] },
      { name: 'libnccl.so.2', sources: sourcesIn('stand-in/nccl'), libraries: ['libcuda.so.1'] },
    ];
    for (const { name, sources, libraries } of parts) {
      if (sources.length === 0) skip(name, 'no sources');
      else {
        const objects = await this.libraryObjects(name, sources);
        await this.link(name, objects, ['-shared', `-Wl,-soname,${name}`], libraries);
      }
    }
  }

  async tests() {
    const sources = sourcesIn('test', '.test.cc').filter((path) => basename(path).includes(this.options.only));
    if (sources.length === 0) return skip('tests', 'no such test/*.test.cc');
    await this.standIns();
    for (const source of sources) {
      const objects = await this.objects([source], '-O1');
      if (includesEngine(closureOf(source))) {
        const engine = sourcesIn('src').filter((path) => !includesNodeApi(closureOf(path)));
        objects.push(...(await this.objects(engine, '-O2')));
      }
      const libraries = ['libnccl.so.2', 'libcuda.so.1', 'libkernels.so'];
      await this.link(basename(source, '.cc'), objects, [], libraries);
    }
  }
}

function skip(what, why) {
  process.stdout.write(`skipped ${what}: ${why}\n`);
}

async function main() {
  const options = readArguments(process.argv.slice(2));
  const build = new Build(options);
  if (options.targets.has('addon')) await build.addon();
  if (options.targets.has('stand-ins')) await build.standIns();
  if (options.targets.has('tests')) await build.tests();
  process.stdout.write(`${build.folder}\n`);
}

try {
  await main();
} catch (error) {
  if (!(error instanceof BuildError)) throw error;
  process.stderr.write(`${error.message}\n`);
  process.exitCode = error.exitCode;
}
