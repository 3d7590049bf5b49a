/** The packages that programs need at run time, as they lie in node_modules. */
import { cpSync, existsSync, lstatSync, readFileSync, realpathSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';

interface Manifest {
  readonly files?: readonly string[];
  readonly dependencies?: Readonly<Record<string, string>>;
}

/** Types, maps and words are not needed to run. */
const UNNEEDED = /\.(ts|cts|mts|map|md|markdown)$/;

/** Copy the dependencies of the package in `root`, those named in `more`, and all of theirs. */
export function copyPackages(root: string, more: readonly string[], target: string): void {
  const modules = join(root, 'node_modules');
  const names = [...Object.keys(readManifest(root).dependencies ?? {}), ...more];
  const found = new Set<string>();
  for (const name of names) collect(name, root, root, found);
  for (const folder of found) {
    // packages inside packages come with those
    if (relative(modules, folder).includes('node_modules')) continue;
    copyPackage(folder, join(target, relative(modules, folder)));
  }
}

/** The folder of `name` as seen from `from`, and of what it needs. */
function collect(name: string, from: string, root: string, found: Set<string>): void {
  const folder = findPackage(name, from, root);
  if (found.has(folder)) return;
  found.add(folder);
  for (const dependency of Object.keys(readManifest(folder).dependencies ?? {}))
    collect(dependency, folder, root, found);
}

function findPackage(name: string, from: string, root: string): string {
  for (let folder = from; ; folder = dirname(folder)) {
    const candidate = join(folder, 'node_modules', name);
    if (existsSync(candidate)) return candidate;
    if (folder === root) throw new Error(`${name}, which ${from} needs, is not installed; run npm ci`);
  }
}

/** A link is a package of this repository, of which only what it publishes is copied. */
function copyPackage(folder: string, target: string): void {
  const real = realpathSync(folder);
  const { files } = readManifest(folder);
  const isOwn = lstatSync(folder).isSymbolicLink();
  const entries = isOwn ? ['package.json', ...(files ?? [])] : ['.'];
  for (const entry of entries) {
    const source = join(real, entry);
    if (!existsSync(source)) continue; // prebuilds, before they are made
    cpSync(source, join(target, entry), { recursive: true, filter: (path) => !UNNEEDED.test(basename(path)) });
  }
}

function readManifest(folder: string): Manifest {
  return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;
}
