import { posix } from 'node:path';
import ts from 'typescript';
import type { SourceFile, Violation } from './source-file';

export const maxCodeLines = 400;

const vagueWords = new Set(['util', 'utils', 'helper', 'helpers', 'common', 'misc']);
const packageEntries = new Set(['index.ts', 'testing/index.ts']);

/** Lines that hold at least one token; blank lines and comments are free. */
export function countCodeLines(file: SourceFile): number {
  const lines = new Set<number>();
  const lineOf = (position: number): number => file.syntax.getLineAndCharacterOfPosition(position).line;
  const visit = (node: ts.Node): void => {
    if (ts.isJSDoc(node)) return;
    const children = node.getChildren(file.syntax);
    children.forEach(visit);
    if (children.length > 0 || node.getWidth(file.syntax) === 0) return;
    const last = lineOf(node.getEnd());
    for (let line = lineOf(node.getStart(file.syntax)); line <= last; line++) lines.add(line);
  };
  visit(file.syntax);
  return lines.size;
}

export function findLongFiles(files: readonly SourceFile[], max: number = maxCodeLines): readonly Violation[] {
  return files.flatMap((file) => {
    const count = countCodeLines(file);
    return count > max ? [`src/${file.path}: ${count} code lines, at most ${max}; split it by idea`] : [];
  });
}

/** Names are kebab-case and say what is inside; index.ts stands only at the package's entries. */
export function findBadNames(paths: readonly string[]): readonly Violation[] {
  return paths.flatMap((path) => {
    const parts = path.replace(/\.ts$/, '').split('/');
    const found: Violation[] = [];
    if (parts.some((part) => !/^[a-z0-9]+(-[a-z0-9]+)*$/.test(part))) found.push(`src/${path}: not kebab-case`);
    const vague = parts.flatMap((part) => part.split('-')).find((word) => vagueWords.has(word));
    if (vague) found.push(`src/${path}: '${vague}' does not say what is inside`);
    if (posix.basename(path) === 'index.ts' && !packageEntries.has(path)) {
      found.push(`src/${path}: index.ts stands only at ${[...packageEntries].join(' and ')}`);
    }
    return found;
  });
}
