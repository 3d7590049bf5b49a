import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import storedExports from '../architecture/public-exports.json';
import { count } from '../helpers/counts';
import { type Outcome, packPackage, type PackedPackage, readJson, toolPath } from './packed-package';

/** Names that exist at run time; `type Name` entries do not. */
const valueNames = (names: readonly string[]): readonly string[] => names.filter((name) => !name.startsWith('type '));

const entries = [
  { entry: 'lockstep', names: valueNames(storedExports['.']) },
  { entry: 'lockstep/testing', names: valueNames(storedExports['./testing']) },
];

const strictOptions = {
  target: 'es2022',
  lib: ['es2023'],
  types: ['node'],
  strict: true,
  exactOptionalPropertyTypes: true,
  skipLibCheck: false,
  noEmit: true,
};

const resolutions = {
  node16: { module: 'node16', moduleResolution: 'node16' },
  bundler: { module: 'esnext', moduleResolution: 'bundler' },
  // what `module: commonjs` means to TypeScript 5 when nothing else is said; TypeScript 6 and later have dropped it
  node10: { module: 'commonjs', moduleResolution: 'node10', esModuleInterop: true },
} as const;

/** Compilers written in JavaScript take seconds for each; the first three hold each compiler and each resolution. */
const slowlyTyped = [
  { compiler: 'typescript-5.6', resolution: 'node10' },
  { compiler: 'typescript-5.6', resolution: 'node16' },
  { compiler: 'typescript-5.9', resolution: 'bundler' },
  { compiler: 'typescript-5.6', resolution: 'bundler' },
  { compiler: 'typescript-5.9', resolution: 'node10' },
  { compiler: 'typescript-5.9', resolution: 'node16' },
] as const;

const typed = [
  ...slowlyTyped.slice(0, count('package: pairs of an older compiler and a module resolution', 1, slowlyTyped.length)),
  { compiler: '@typescript/native', resolution: 'node16' },
  { compiler: '@typescript/native', resolution: 'bundler' },
] as const;

// Packing and compiling take seconds on a busy machine; the limits are for hangs.
jest.setTimeout(120_000);

describe('the packed package', () => {
  let pack: PackedPackage;

  beforeAll(async () => {
    pack = await packPackage();
  });

  afterAll(() => pack?.remove());

  /** Runs a script in the scratch project and gives what it printed as JSON. */
  async function evaluate(file: string, script: string): Promise<unknown> {
    pack.write(file, script);
    const { status, output } = await pack.node(file);
    if (status !== 0) throw new Error(`${file} failed:\n${output}`);
    return JSON.parse(output) as unknown;
  }

  test('holds the build, the sources that its maps point to, and the licences, nothing else', () => {
    const other = pack.files.filter((path) => !/^(dist|src)\//.test(path));
    const allowed = ['CHANGELOG.md', 'LICENSE-APACHE', 'LICENSE-MIT', 'README.md', 'package.json'];
    expect(other.filter((path) => !allowed.includes(path))).toEqual([]);
    expect(other).toEqual(expect.arrayContaining(['LICENSE-APACHE', 'LICENSE-MIT', 'package.json']));
    expect(pack.files.filter((path) => path.startsWith('dist/') && !/\.(js|d\.ts)(\.map)?$/.test(path))).toEqual([]);
  });

  test('has source maps and declaration maps for every file, and all of them resolve', () => {
    const built = pack.files.filter((path) => /^dist\/.*\.(js|d\.ts)$/.test(path));
    expect(built.length).toBeGreaterThan(0);
    const broken = built.flatMap((path) => {
      const map = join(pack.installed, `${path}.map`);
      if (!existsSync(map)) return [`${path} has no map`];
      const sources = readJson(map)['sources'] as string[];
      return sources
        .filter((source) => !existsSync(resolve(dirname(map), source)))
        .map((source) => `${path}.map points to ${source}, which is not in the package`);
    });
    expect(broken).toEqual([]);
  });

  test('names no path of the machine it was built on', () => {
    const leaking = pack.files.filter((path) => readFileSync(join(pack.installed, path), 'utf8').includes(pack.folder));
    expect(leaking).toEqual([]);
  });

  test.each(entries)('$entry: require gives exactly the public values', async ({ entry, names }) => {
    const script = `process.stdout.write(JSON.stringify(Object.keys(require('${entry}')).sort()));`;
    expect(await evaluate('required.cjs', script)).toEqual([...names].sort());
  });

  test.each(entries)('$entry: an ES module imports every public value by name', async ({ entry, names }) => {
    const aliases = names.map((name, index) => `${name} as v${index}`).join(', ');
    const types = names.map((_, index) => `typeof v${index}`).join(', ');
    const script = `import { ${aliases} } from '${entry}'; process.stdout.write(JSON.stringify([${types}]));`;
    expect(await evaluate('imported.mjs', script)).toEqual(names.map(() => expect.not.stringMatching('undefined')));
  });

  test('exports nothing but its entry points and package.json', async () => {
    const script = `
      const tried = ['lockstep/package.json', 'lockstep/dist/index.js', 'lockstep/src/index.ts', 'lockstep/core/errors'];
      const load = (path) => { try { require(path); return 'loaded'; } catch (error) { return error.code; } };
      process.stdout.write(JSON.stringify(tried.map(load)));`;
    const refused = 'ERR_PACKAGE_PATH_NOT_EXPORTED';
    expect(await evaluate('deep.cjs', script)).toEqual(['loaded', refused, refused, refused]);
    expect(Object.keys(readJson(join(pack.installed, 'package.json'))['exports'] as object)).toEqual([
      '.',
      './testing',
      './package.json',
    ]);
  });

  test.each([[[]], [['--enable-source-maps']]])(
    'errors name the line of the program, with node flags %j',
    async (flags) => {
      pack.write(
        'program.cjs',
        `const { runWorld } = require('lockstep/testing');
       const { Tensor, allReduceMax, allReduceSum } = require('lockstep');
       runWorld(2, (world) => {
         const tensor = Tensor.from([1]);
         return world.rank === 0 ? allReduceSum(tensor, world.group) : allReduceMax(tensor, world.group);
       }).catch((error) => process.stdout.write(error.message));`,
      );
      const { output } = await pack.node(...flags, 'program.cjs');
      expect(output).toMatch(/rank 0: allReduce\(float32\[1\], Sum\) at program\.cjs:5:\d+\n/);
      expect(output).toMatch(/rank 1: allReduce\(float32\[1\], Max\) at program\.cjs:5:\d+\n/);
    },
  );

  test('loads no transport or native code until a backend asks for it', async () => {
    const script = `
      require('lockstep'); require('lockstep/testing');
      const heavy = Object.keys(require.cache).filter((path) => /grpc-js|\\.node$/.test(path));
      process.stdout.write(JSON.stringify(heavy));`;
    expect(await evaluate('loaded.cjs', script)).toEqual([]);
  });

  test('has the command lockstep, which runs a script that requires the package on several ranks', async () => {
    const { bin } = readJson(join(pack.installed, 'package.json')) as { bin: Record<string, string> };
    pack.write('ranks.cjs', `console.log(require('lockstep').ReduceOp.Sum, process.env.RANK);`);
    const command = join(pack.installed, bin['lockstep'] as string);
    const { status, output } = await pack.node(command, 'run', '--nproc', '2', 'ranks.cjs');
    expect({ status, lines: output.trim().split('\n').sort() }).toEqual({
      status: 0,
      lines: ['[0] Sum 0', '[1] Sum 1'],
    });
  });

  test('publint finds nothing', async () => {
    const { status, output } = await pack.node(
      toolPath('publint', 'src', 'cli.js'),
      pack.installed,
      '--strict',
      '--pack',
      'false',
    );
    expect({ status, output }).toEqual({ status: 0, output: expect.stringContaining('All good') });
  });

  test.each(typed)(
    'under $compiler a strict project compiles with module resolution $resolution',
    async ({ compiler, resolution }) => {
      pack.write('consumer.ts', readFileSync(join(__dirname, 'consumer', 'consumer.ts'), 'utf8'));
      const compilerOptions = { ...strictOptions, ...resolutions[resolution] };
      pack.write('consumer.json', JSON.stringify({ compilerOptions, files: ['consumer.ts'] }));
      const compiled: Outcome = await pack.node(toolPath(compiler, 'bin', 'tsc'), '-p', 'consumer.json');
      expect(compiled).toEqual({ status: 0, output: '' });
    },
  );
});
