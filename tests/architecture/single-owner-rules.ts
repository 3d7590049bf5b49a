import ts from 'typescript';
import { locate, type SourceFile, type Violation, walk } from './source-file';

/** Something of the platform that one file alone may touch, so that tests and users can replace or find it. */
export interface OwnedThing {
  readonly name: string;
  readonly owner: string;
  readonly isUse: (node: ts.Node, file: SourceFile) => boolean;
}

const timerNames = ['setTimeout', 'setInterval', 'setImmediate'];
const clockModules = ['timers', 'timers/promises', 'perf_hooks'].flatMap((name) => [name, `node:${name}`]);

export const ownedThings: readonly OwnedThing[] = [
  {
    name: 'process.env',
    owner: 'core/environment.ts',
    isUse: (node) =>
      isMember(node, 'process', 'env') || takesFrom(node, ['process', 'node:process'], ['env', 'default']),
  },
  {
    name: 'AsyncLocalStorage',
    owner: 'core/context.ts',
    isUse: (node) =>
      (ts.isNewExpression(node) && /(^|\.)AsyncLocalStorage$/.test(node.expression.getText())) ||
      takesFrom(node, ['async_hooks', 'node:async_hooks'], ['AsyncLocalStorage', 'default']),
  },
  {
    name: 'a timer or the clock',
    owner: 'core/clock.ts',
    isUse: (node, file) =>
      timerNames.some((name) => isGlobal(node, name, file) || isMember(node, 'globalThis', name)) ||
      isMember(node, 'Date', 'now') ||
      isMember(node, 'performance', 'now') ||
      isMember(node, 'process', 'hrtime') ||
      isBareDate(node) ||
      takesFrom(node, clockModules),
  },
];

/** Every use outside the owner's file. */
export function findStrayUses(files: readonly SourceFile[], things = ownedThings): readonly Violation[] {
  return files.flatMap((file) => {
    const found: Violation[] = [];
    const others = things.filter((thing) => thing.owner !== file.path);
    walk(file.syntax, (node) => {
      for (const { name, owner, isUse } of others) {
        if (isUse(node, file)) found.push(`${locate(file, node)}: ${name} belongs to src/${owner}; go through it`);
      }
    });
    return found;
  });
}

/** `object.member`, `object['member']`, or `const { member } = object`. */
function isMember(node: ts.Node, object: string, member: string): boolean {
  if (ts.isPropertyAccessExpression(node)) return node.expression.getText() === object && node.name.text === member;
  if (ts.isElementAccessExpression(node)) {
    const key = node.argumentExpression;
    return node.expression.getText() === object && ts.isStringLiteralLike(key) && key.text === member;
  }
  if (!ts.isVariableDeclaration(node) || node.initializer?.getText() !== object) return false;
  return (
    ts.isObjectBindingPattern(node.name) &&
    node.name.elements.some((element) => (element.propertyName ?? element.name).getText() === member)
  );
}

/** A value import (or re-export) from one of `modules`, of one of `names` if given, or of the whole module. */
function takesFrom(node: ts.Node, modules: readonly string[], names?: readonly string[]): boolean {
  if (ts.isCallExpression(node)) {
    const [first] = node.arguments;
    const isLoad = node.expression.kind === ts.SyntaxKind.ImportKeyword || node.expression.getText() === 'require';
    return isLoad && first !== undefined && ts.isStringLiteralLike(first) && modules.includes(first.text);
  }
  if (!ts.isImportDeclaration(node) || !ts.isStringLiteral(node.moduleSpecifier)) return false;
  const clause = node.importClause;
  if (!modules.includes(node.moduleSpecifier.text) || clause?.phaseModifier === ts.SyntaxKind.TypeKeyword) return false;
  const bindings = clause?.namedBindings;
  if (clause?.name || !bindings || !ts.isNamedImports(bindings)) return true;
  const values = bindings.elements.filter((element) => !element.isTypeOnly);
  return values.some((element) => !names || names.includes((element.propertyName ?? element.name).text));
}

/** An identifier that means the global: not a member's name, not a type, not declared in this file. */
function isGlobal(node: ts.Node, name: string, file: SourceFile): boolean {
  if (!ts.isIdentifier(node) || node.text !== name || isDeclaredIn(file, name)) return false;
  const { parent } = node;
  if (ts.isPropertyAccessExpression(parent)) return parent.expression === node;
  if (ts.isTypeQueryNode(parent) || ts.isImportSpecifier(parent)) return false;
  const isMemberName =
    (ts.isPropertyAssignment(parent) || ts.isMethodDeclaration(parent) || ts.isPropertyDeclaration(parent)) &&
    parent.name === node;
  return !isMemberName && !ts.isMethodSignature(parent) && !ts.isPropertySignature(parent);
}

function isDeclaredIn(file: SourceFile, name: string): boolean {
  let isDeclared = false;
  walk(file.syntax, (node) => {
    const isDeclaration =
      ts.isImportSpecifier(node) ||
      ts.isVariableDeclaration(node) ||
      ts.isParameter(node) ||
      ts.isBindingElement(node) ||
      ts.isFunctionDeclaration(node);
    if (isDeclaration && node.name?.getText() === name) isDeclared = true;
  });
  return isDeclared;
}

/** `new Date()`, which reads the clock; `new Date(value)` does not. */
function isBareDate(node: ts.Node): boolean {
  return ts.isNewExpression(node) && node.expression.getText() === 'Date' && !node.arguments?.length;
}
