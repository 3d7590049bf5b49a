import { posix } from 'node:path';
import ts from 'typescript';
import { locate, type SourceFile, walk } from './source-file';

/**
 * One import of one file.
 * - `type`: gone after compilation (`import type`, `export type`, or only `type` specifiers)
 * - `static`: runs when the importing file is loaded
 * - `lazy`: `import()` or `require()`, runs when it is reached
 */
export interface Import {
  readonly from: string;
  readonly specifier: string;
  /** Path under src/ for a relative import that names a file there, else undefined. */
  readonly to: string | undefined;
  readonly kind: 'type' | 'static' | 'lazy';
  readonly location: string;
}

/** All imports and re-exports of `files`, type-only ones included. */
export function findImports(files: readonly SourceFile[]): readonly Import[] {
  const known = new Set(files.map((file) => file.path));
  return files.flatMap((file) => importsOf(file, known));
}

function importsOf(file: SourceFile, known: ReadonlySet<string>): readonly Import[] {
  const found: Import[] = [];
  const add = (node: ts.Node, specifier: ts.Node | undefined, kind: Import['kind']): void => {
    if (!specifier || !ts.isStringLiteralLike(specifier)) return;
    const to = resolveInSource(file.path, specifier.text, known);
    found.push({ from: file.path, specifier: specifier.text, to, kind, location: locate(file, node) });
  };
  walk(file.syntax, (node) => {
    if (ts.isImportDeclaration(node)) add(node, node.moduleSpecifier, isTypeOnlyImport(node) ? 'type' : 'static');
    else if (ts.isExportDeclaration(node)) add(node, node.moduleSpecifier, isTypeOnlyExport(node) ? 'type' : 'static');
    else if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument)) add(node, node.argument.literal, 'type');
    else if (ts.isExternalModuleReference(node)) add(node, node.expression, 'static');
    else if (ts.isCallExpression(node) && isLazyImport(node)) add(node, node.arguments[0], 'lazy');
  });
  return found;
}

function isTypeOnlyImport(node: ts.ImportDeclaration): boolean {
  const clause = node.importClause;
  if (!clause) return false;
  if (clause.phaseModifier === ts.SyntaxKind.TypeKeyword) return true;
  const bindings = clause.namedBindings;
  if (clause.name || !bindings || !ts.isNamedImports(bindings)) return false;
  return bindings.elements.length > 0 && bindings.elements.every((element) => element.isTypeOnly);
}

function isTypeOnlyExport(node: ts.ExportDeclaration): boolean {
  if (node.isTypeOnly) return true;
  const clause = node.exportClause;
  if (!clause || !ts.isNamedExports(clause)) return false;
  return clause.elements.length > 0 && clause.elements.every((element) => element.isTypeOnly);
}

function isLazyImport(node: ts.CallExpression): boolean {
  const callee = node.expression;
  return callee.kind === ts.SyntaxKind.ImportKeyword || (ts.isIdentifier(callee) && callee.text === 'require');
}

function resolveInSource(from: string, specifier: string, known: ReadonlySet<string>): string | undefined {
  if (!specifier.startsWith('.')) return undefined;
  const base = posix.join(posix.dirname(from), specifier).replace(/\.js$/, '');
  return [base, `${base}.ts`, `${base}/index.ts`].find((path) => known.has(path));
}
