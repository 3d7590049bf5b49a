import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import ts from 'typescript';
import { parse, type SourceFile, sourceRoot, type Violation } from './source-file';

/** Names that an entry point exports, sorted; a name that is only a type reads `type Name`. */
export type ExportList = Readonly<Record<string, readonly string[]>>;

export const storedPath: string = resolve(__dirname, 'public-exports.json');

const entryFiles: Readonly<Record<string, string>> = { '.': 'index.ts', './testing': 'testing/index.ts' };

/** What src/ exports now. */
export function readPublicExports(): ExportList {
  const entries = Object.entries(entryFiles).map(([entry, path]) => {
    return [entry, exportsOf(parse(path, readFileSync(join(sourceRoot, path), 'utf8')))] as const;
  });
  return Object.fromEntries(entries);
}

/** What public-exports.json says. */
export function readStoredExports(): ExportList {
  return JSON.parse(readFileSync(storedPath, 'utf8')) as ExportList;
}

export function exportsOf(file: SourceFile): readonly string[] {
  return file.syntax.statements.flatMap((statement) => exportedNames(statement)).sort();
}

function exportedNames(statement: ts.Statement): readonly string[] {
  if (ts.isExportDeclaration(statement)) {
    const clause = statement.exportClause;
    if (!clause) return [`* from ${statement.moduleSpecifier?.getText()}`];
    if (ts.isNamespaceExport(clause)) return [clause.name.text];
    return clause.elements.map((element) => {
      return statement.isTypeOnly || element.isTypeOnly ? `type ${element.name.text}` : element.name.text;
    });
  }
  if (ts.isExportAssignment(statement)) return ['default'];
  const modifiers = ts.canHaveModifiers(statement) ? (ts.getModifiers(statement) ?? []) : [];
  if (!modifiers.some((modifier) => modifier.kind === ts.SyntaxKind.ExportKeyword)) return [];
  if (ts.isInterfaceDeclaration(statement) || ts.isTypeAliasDeclaration(statement)) {
    return [`type ${statement.name.text}`];
  }
  if (ts.isVariableStatement(statement)) {
    return statement.declarationList.declarations.map((declaration) => declaration.name.getText());
  }
  if (ts.isClassDeclaration(statement) || ts.isFunctionDeclaration(statement))
    return [statement.name?.text ?? 'default'];
  return [];
}

/** One line for each name that appeared or vanished. */
export function diffExports(stored: ExportList, actual: ExportList): readonly Violation[] {
  const entries = [...new Set([...Object.keys(stored), ...Object.keys(actual)])].sort();
  return entries.flatMap((entry) => {
    const before = stored[entry] ?? [];
    const now = actual[entry] ?? [];
    const added = now.filter((name) => !before.includes(name)).map((name) => `${entry}: + ${name}`);
    const removed = before.filter((name) => !now.includes(name)).map((name) => `${entry}: - ${name}`);
    return [...removed, ...added];
  });
}
