import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import ts from 'typescript';

/** A parsed file of src/. `path` is relative to src/ and has forward slashes: `core/errors.ts`. */
export interface SourceFile {
  readonly path: string;
  readonly syntax: ts.SourceFile;
}

/** What a rule found: one line that says where, what, and what to do about it. */
export type Violation = string;

export const sourceRoot: string = resolve(__dirname, '../../src');

export function parse(path: string, text: string): SourceFile {
  return { path, syntax: ts.createSourceFile(path, text, ts.ScriptTarget.ES2023, true, ts.ScriptKind.TS) };
}

/** Every .ts file under src/, sorted by path. */
export function readSourceFiles(root: string = sourceRoot): readonly SourceFile[] {
  return readdirSync(root, { recursive: true, encoding: 'utf8' })
    .map((path) => path.replaceAll('\\', '/'))
    .filter((path) => path.endsWith('.ts'))
    .sort()
    .map((path) => parse(path, readFileSync(join(root, path), 'utf8')));
}

/** `core/errors.ts:12`, to open every message with. */
export function locate(file: SourceFile, node: ts.Node): string {
  const { line } = file.syntax.getLineAndCharacterOfPosition(node.getStart(file.syntax));
  return `src/${file.path}:${line + 1}`;
}

/** Calls `visit` on `node` and everything below it, parents first. */
export function walk(node: ts.Node, visit: (node: ts.Node) => void): void {
  visit(node);
  ts.forEachChild(node, (child) => walk(child, visit));
}
