import { findCycles, runtimeGraph } from './cycles';
import { countCodeLines, findBadNames, findLongFiles } from './file-rules';
import { findImports, type Import } from './imports';
import { findFilesWithoutLayer, findForbiddenImports, findForbiddenPackages, layerOf } from './layer-rules';
import { layers, reservedPackages } from './layer-table';
import { diffExports, exportsOf } from './public-exports';
import { findStrayUses } from './single-owner-rules';
import { parse } from './source-file';

/** Imports among the files of an in-memory src/. */
function importsIn(texts: Readonly<Record<string, string>>): readonly Import[] {
  return findImports(Object.entries(texts).map(([path, text]) => parse(path, text)));
}

const emptyFiles = {
  'core/work.ts': '',
  'tensor/tensor.ts': '',
  'backend/backend.ts': '',
  'backend/registry.ts': '',
  'backend/mock/mock-backend.ts': '',
  'backend/grpc/grpc-backend.ts': '',
  'ddp/bucket.ts': '',
};

/** What the table says about one file with this text. */
function forbidden(path: string, text: string): readonly string[] {
  return findForbiddenImports(importsIn({ ...emptyFiles, [path]: text }), layers);
}

describe('imports', () => {
  test('every form of import is seen, and its kind', () => {
    const kinds = importsIn({
      ...emptyFiles,
      'a.ts': `
        import a from './core/work';
        import type b from './core/work';
        import { type C, type D } from './core/work';
        import { type E, f } from './core/work';
        import './core/work';
        import g = require('./core/work');
        export { h } from './core/work';
        export type { I } from './core/work';
        export * from './core/work.js';
        type J = import('./core/work').J;
        const k = () => import('./core/work');
        const l = () => require('./core/work');`,
    }).map(({ kind, to }) => `${kind} ${to}`);
    const expected = ['static', 'type', 'type', 'static', 'static', 'static', 'static', 'type', 'static', 'type'];
    expect(kinds).toEqual([...expected, 'lazy', 'lazy'].map((kind) => `${kind} core/work.ts`));
  });
});

describe('layer table', () => {
  test('the longest name decides the layer', () => {
    const names = [
      'backend/backend.ts',
      'backend/registry.ts',
      'backend/mock/deep/er.ts',
      'index.ts',
      'testing/index.ts',
    ];
    expect(names.map((path) => layerOf(path, layers)?.name)).toEqual([
      'backend',
      'backend/registry',
      'backend/mock',
      'index',
      'testing',
    ]);
  });

  test('a layer names only layers that exist', () => {
    const known = layers.map((layer) => layer.name);
    const named = layers.flatMap(({ imports, types = [], lazy = [] }) => [...imports, ...types, ...lazy]);
    expect(named.filter((name) => !known.includes(name))).toEqual([]);
    expect(new Set(known).size).toBe(known.length);
  });

  test('a new folder, or a new backend, has to be listed', () => {
    expect(findFilesWithoutLayer(['core/work.ts', 'extras/thing.ts', 'backend/mpi/mpi.ts'], layers)).toEqual([
      expect.stringContaining('src/extras/thing.ts'),
      expect.stringContaining('src/backend/mpi/mpi.ts'),
    ]);
  });

  test.each([
    ['core imports a layer above', 'core/rng.ts', "import { Tensor } from '../tensor/tensor';"],
    ['core imports only a type from above', 'core/rng.ts', "import type { Tensor } from '../tensor/tensor';"],
    ['one strategy imports another', 'zero/zero.ts', "import { Bucket } from '../ddp/bucket';"],
    ['a strategy names a backend', 'ddp/ddp.ts', "import { M } from '../backend/mock/mock-backend';"],
    ['a strategy takes more than types of the interface', 'ddp/ddp.ts', "import { B } from '../backend/backend';"],
    ['a backend imports another', 'backend/mock/other.ts', "import { G } from '../grpc/grpc-backend';"],
    ['the registry loads gRPC at once', 'backend/registry.ts', "import { G } from './grpc/grpc-backend';"],
    ['the process group names a backend', 'process-group/world.ts', "import '../backend/grpc/grpc-backend';"],
    ['the way around, by import()', 'nn/linear.ts', "const load = () => import('../ddp/bucket');"],
    ['the way around, by an import type', 'nn/linear.ts', "let b: import('../ddp/bucket').Bucket;"],
    ['a file that does not exist', 'nn/linear.ts', "import '../core/nothing';"],
  ])('refused: %s', (_, path, text) => {
    expect(forbidden(path, text)).toEqual([expect.stringContaining(`src/${path}:1: `)]);
  });

  test.each([
    ['zero/zero.ts', "import type { Backend } from '../backend/backend';"],
    ['backend/registry.ts', "const load = () => import('./grpc/grpc-backend');"],
    ['testing/run-world.ts', "import { MockBackend } from '../backend/mock/mock-backend';"],
    ['core/rng.ts', "import { Work } from './work';"],
  ])('allowed: %s with %s', (path, text) => {
    expect(forbidden(path, text)).toEqual([]);
  });

  test('refused: undeclared and reserved packages, builtins without node:', () => {
    const imports = importsIn({
      'ddp/ddp.ts': "import 'zod'; import '@grpc/grpc-js/build'; import 'fs'; import 'node:fs'; import 'left-pad';",
    });
    expect(findForbiddenPackages(imports, layers, ['zod', '@grpc/grpc-js'], reservedPackages)).toEqual([
      expect.stringContaining("'@grpc/grpc-js' is for backend/grpc, not for ddp"),
      expect.stringContaining("write 'node:fs'"),
      expect.stringContaining("'left-pad' is not in the dependencies"),
    ]);
  });
});

describe('cycles', () => {
  const cyclesIn = (texts: Readonly<Record<string, string>>): readonly string[] =>
    findCycles(runtimeGraph(importsIn(texts)));

  test('a planted cycle is found, behind files that are not part of it', () => {
    const texts = {
      'a.ts': "import './b'; import './d';",
      'b.ts': "import './c';",
      'c.ts': "const load = () => import('./d');",
      'd.ts': "export { b } from './b';",
    };
    expect(cyclesIn(texts)).toEqual(['b.ts -> c.ts -> d.ts -> b.ts']);
    expect(cyclesIn({ 'a.ts': "import './a';" })).toEqual(['a.ts -> a.ts']);
  });

  test('two tangles are both found', () => {
    const graph = new Map([
      ['a', ['b', 'c']],
      ['b', ['a']],
      ['c', ['d']],
      ['d', ['c']],
    ]);
    expect(findCycles(graph)).toEqual(['a -> b -> a', 'c -> d -> c']);
  });

  test('a diamond is no cycle, nor are types that refer to each other', () => {
    expect(cyclesIn({ 'a.ts': "import './b'; import './c';", 'b.ts': "import './c';", 'c.ts': '' })).toEqual([]);
    expect(cyclesIn({ 'a.ts': "import './b';", 'b.ts': "import type { A } from './a';" })).toEqual([]);
  });
});

describe('files', () => {
  test('code lines are counted without blanks and comments', () => {
    const text = `/** Doc. */
      // comment
      export const a = \`one
      two\`; /* after code */

      /**
       * Doc.
       */
      export function b(): void {
        // inside
      }
    `;
    expect(countCodeLines(parse('a.ts', text))).toBe(4);
  });

  test('refused: a file with more code lines than the limit', () => {
    const file = parse('a.ts', 'f();\n'.repeat(11));
    expect(findLongFiles([file], 11)).toEqual([]);
    expect(findLongFiles([file], 10)).toEqual(['src/a.ts: 11 code lines, at most 10; split it by idea']);
  });

  test.each([
    'core/utils.ts',
    'core/tensor-helpers.ts',
    'common/work.ts',
    'core/Work.ts',
    'core/a_b.ts',
    'ddp/index.ts',
  ])('refused: %s', (path) => {
    expect(findBadNames([path])).toHaveLength(1);
  });

  test('allowed: names that say what is inside', () => {
    expect(findBadNames(['index.ts', 'testing/index.ts', 'core/utilisation.ts', 'comm/all-reduce.ts'])).toEqual([]);
  });
});

describe('single owners', () => {
  test.each([
    'const a = process.env.RANK;',
    "const a = process['env'];",
    'const { env: e } = process;',
    "import { env } from 'node:process';",
    "import process from 'node:process';",
    'const s = new AsyncLocalStorage<number>();',
    "import { AsyncLocalStorage as A } from 'node:async_hooks';",
    "import * as hooks from 'node:async_hooks';",
    'setTimeout(f, 1);',
    'const later = setImmediate;',
    'globalThis.setInterval(f, 1);',
    "import { setTimeout as sleep } from 'node:timers/promises';",
    "const timers = require('node:timers');",
    'const t = Date.now();',
    'const t = new Date();',
    'const t = performance.now();',
    'const t = process.hrtime.bigint();',
  ])('refused outside its owner: %s', (text) => {
    expect(findStrayUses([parse('nn/linear.ts', text)])).toEqual([expect.stringContaining('src/nn/linear.ts:1: ')]);
  });

  test.each([
    "import type { AsyncLocalStorage } from 'node:async_hooks';",
    "import { AsyncResource } from 'node:async_hooks';",
    "import { setTimeout } from '../core/clock'; setTimeout(f, 1);",
    'clock.setTimeout(f, 1);',
    'const clock = { setTimeout: f };',
    'class Clock { setTimeout(): void {} }',
    'const t = new Date(0);',
    'const e = options.env;',
  ])('allowed anywhere: %s', (text) => {
    expect(findStrayUses([parse('nn/linear.ts', text)])).toEqual([]);
  });

  test('the owner may', () => {
    expect(findStrayUses([parse('core/clock.ts', 'setTimeout(f, Date.now());')])).toEqual([]);
    expect(findStrayUses([parse('core/environment.ts', 'const a = process.env;')])).toEqual([]);
  });
});

describe('public exports', () => {
  test('every form of export is listed, types as such', () => {
    const text = `
      export { b, c as a, type T } from './x';
      export type { U } from './x';
      export * as space from './x';
      export * from './y';
      export interface I {}
      export const k = 1;
      export class K {}
      export function f() {}
      export default f;
      const hidden = 1;`;
    const expected = ["* from './y'", 'K', 'a', 'b', 'default', 'f', 'k', 'space', 'type I', 'type T', 'type U'];
    expect(exportsOf(parse('index.ts', text))).toEqual(expected);
  });

  test('a name that appears, vanishes or turns into a type is reported', () => {
    const stored = { '.': ['a', 'b', 'c'], './testing': [] };
    const actual = { '.': ['a', 'd', 'type c'], './testing': ['e'] };
    expect(diffExports(stored, actual)).toEqual(['.: - b', '.: - c', '.: + d', '.: + type c', './testing: + e']);
    expect(diffExports(stored, stored)).toEqual([]);
  });
});
