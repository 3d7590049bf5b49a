import { builtinModules } from 'node:module';
import type { Import } from './imports';
import type { Layer } from './layer-table';
import type { Violation } from './source-file';

/** The layer of a path under src/: the longest name that is the file itself or a folder above it. */
export function layerOf(path: string, layers: readonly Layer[]): Layer | undefined {
  return layers
    .filter((layer) => path === `${layer.name}.ts` || isInside(path, layer))
    .sort((a, b) => b.name.length - a.name.length)[0];
}

function isInside(path: string, layer: Layer): boolean {
  if (!path.startsWith(`${layer.name}/`)) return false;
  return !layer.isFlat || !path.slice(layer.name.length + 1).includes('/');
}

/** Files that belong to no layer: a new folder has to say what it may import. */
export function findFilesWithoutLayer(paths: readonly string[], layers: readonly Layer[]): readonly Violation[] {
  return paths
    .filter((path) => !layerOf(path, layers))
    .map((path) => `src/${path}: belongs to no layer; add its folder to layer-table.ts`);
}

/** Imports inside src/ that the table does not allow, and relative imports that lead nowhere in src/. */
export function findForbiddenImports(imports: readonly Import[], layers: readonly Layer[]): readonly Violation[] {
  return imports.flatMap((item) => {
    const complaint = complainAbout(item, layers);
    return complaint ? [`${item.location}: ${complaint}`] : [];
  });
}

function complainAbout(item: Import, layers: readonly Layer[]): string | undefined {
  if (item.to === undefined) {
    return item.specifier.startsWith('.') ? `'${item.specifier}' is no file under src/` : undefined;
  }
  const from = layerOf(item.from, layers);
  const to = layerOf(item.to, layers);
  if (!from || !to || from === to || from.imports.includes(to.name)) return undefined;
  if (item.kind === 'type' && from.types?.includes(to.name)) return undefined;
  if (item.kind === 'lazy' && from.lazy?.includes(to.name)) return undefined;
  const may = [...from.imports, ...describe('types of', from.types), ...describe('lazily', from.lazy)];
  const what = item.kind === 'type' ? 'a type of' : item.kind === 'lazy' ? 'lazily' : 'statically';
  return `${from.name} may not import ${what} ${to.name} (${item.to}); it may import ${may.join(', ') || 'nothing'}`;
}

function describe(how: string, names: readonly string[] = []): readonly string[] {
  return names.length > 0 ? [`${how} ${names.join(' and ')}`] : [];
}

/** Packages that are not declared dependencies, reserved ones in the wrong layer, builtins without `node:`. */
export function findForbiddenPackages(
  imports: readonly Import[],
  layers: readonly Layer[],
  dependencies: readonly string[],
  reserved: Readonly<Record<string, readonly string[]>>,
): readonly Violation[] {
  return imports.flatMap(({ specifier, location, from }) => {
    if (specifier.startsWith('.') || specifier.startsWith('node:')) return [];
    const name = specifier.split('/', specifier.startsWith('@') ? 2 : 1).join('/');
    if (builtinModules.includes(name)) return [`${location}: write 'node:${specifier}'`];
    if (!dependencies.includes(name)) return [`${location}: '${name}' is not in the dependencies of package.json`];
    const allowed = reserved[name];
    const layer = layerOf(from, layers)?.name ?? 'no layer';
    if (!allowed || allowed.includes(layer)) return [];
    return [`${location}: '${name}' is for ${allowed.join(', ')}, not for ${layer}`];
  });
}
