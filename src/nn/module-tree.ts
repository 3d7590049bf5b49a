/** How a Module finds what belongs to it: among its enumerable properties, in the order in which they were assigned. */
import { Parameter } from './parameter';
import type { AnyModule, Named } from './any-module';

/** Marks modules; a registered symbol, so that this file need not import the class that imports it. */
export const MODULE_BRAND = Symbol.for('lockstep.module');

/** The parameters and modules that are properties of `module`, or elements of arrays that are. */
function* ownMembers(module: AnyModule): Generator<Named<Parameter | AnyModule>> {
  for (const [key, value] of Object.entries(module)) yield* membersOf(key, value);
}

function* membersOf(name: string, value: unknown): Generator<Named<Parameter | AnyModule>> {
  if (value instanceof Parameter || isModule(value)) yield [name, value];
  else if (Array.isArray(value))
    for (const [index, item] of value.entries()) yield* membersOf(`${name}.${index}`, item);
}

/** The parameters that are properties of `module` itself, each once, in order. */
export function ownParametersOf(module: AnyModule): Parameter[] {
  const own = [...ownMembers(module)].map(([, member]) => member).filter((member) => member instanceof Parameter);
  return [...new Set(own)];
}

/** Direct children, in order; one that is assigned twice under its first name. */
export function* childrenOf(module: AnyModule): Generator<Named<AnyModule>> {
  const seen = new Set<AnyModule>();
  for (const [name, member] of ownMembers(module)) {
    if (member instanceof Parameter || seen.has(member)) continue;
    seen.add(member);
    yield [name, member];
  }
}

/** `module` itself and all modules below it, parents first, each once. */
export function* modulesOf(module: AnyModule, name = '', seen = new Set<AnyModule>()): Generator<Named<AnyModule>> {
  if (seen.has(module)) return;
  seen.add(module);
  yield [name, module];
  for (const [childName, child] of childrenOf(module)) yield* modulesOf(child, join(name, childName), seen);
}

/** All parameters of `module` and below, each once, under its first name. */
export function* parametersOf(
  module: AnyModule,
  prefix = '',
  seen = new Set<Parameter | AnyModule>(),
): Generator<Named<Parameter>> {
  seen.add(module);
  for (const [name, member] of ownMembers(module)) {
    if (seen.has(member)) continue;
    seen.add(member);
    if (member instanceof Parameter) yield [join(prefix, name), member];
    else yield* parametersOf(member, join(prefix, name), seen);
  }
}

/** All names of all parameters: a tied parameter, or one of a module that is used twice, has several. */
export function* parameterPaths(
  module: AnyModule,
  prefix = '',
  above: readonly AnyModule[] = [],
): Generator<Named<Parameter>> {
  if (above.includes(module)) return; // a child that refers back to its parent
  for (const [name, member] of ownMembers(module)) {
    if (member instanceof Parameter) yield [join(prefix, name), member];
    else yield* parameterPaths(member, join(prefix, name), [...above, module]);
  }
}

export function join(prefix: string, name: string): string {
  return prefix === '' ? name : `${prefix}.${name}`;
}

function isModule(value: unknown): value is AnyModule {
  return typeof value === 'object' && value !== null && MODULE_BRAND in value;
}
