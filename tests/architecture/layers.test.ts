import packageJson from '../../package.json';
import { findCycles, runtimeGraph } from './cycles';
import { findBadNames, findLongFiles } from './file-rules';
import { findImports } from './imports';
import { findFilesWithoutLayer, findForbiddenImports, findForbiddenPackages } from './layer-rules';
import { layers, reservedPackages } from './layer-table';
import { diffExports, readPublicExports, readStoredExports } from './public-exports';
import { findStrayUses } from './single-owner-rules';
import { readSourceFiles } from './source-file';

// That each of these rules can fail is shown in rules-can-fail.test.ts.
describe('architecture of src/', () => {
  const files = readSourceFiles();
  const paths = files.map((file) => file.path);
  const imports = findImports(files);

  test('every file belongs to a layer', () => {
    expect(findFilesWithoutLayer(paths, layers)).toEqual([]);
  });

  test('imports follow the layer table', () => {
    expect(findForbiddenImports(imports, layers)).toEqual([]);
  });

  test('packages from outside are declared and stay where they belong', () => {
    const { dependencies: needed, peerDependencies: optional } = packageJson;
    const dependencies = Object.keys({ ...needed, ...optional });
    expect(findForbiddenPackages(imports, layers, dependencies, reservedPackages)).toEqual([]);
  });

  test('no file needs itself, directly or through others', () => {
    expect(findCycles(runtimeGraph(imports))).toEqual([]);
  });

  test('files are short enough to read', () => {
    expect(findLongFiles(files)).toEqual([]);
  });

  test('file names say what is inside', () => {
    expect(findBadNames(paths)).toEqual([]);
  });

  test('the environment, the asynchronous context and the clock are touched in one file each', () => {
    expect(findStrayUses(files)).toEqual([]);
  });

  test('the public exports are those of public-exports.json (if meant: npm run exports:update)', () => {
    expect(diffExports(readStoredExports(), readPublicExports())).toEqual([]);
  });
});
