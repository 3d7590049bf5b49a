/** The saved form of a module: to it, and back with every check before the first change. */
import { bytesOf, copyBuffer, isFloatDType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { noGrad } from '../tensor/gradient-mode';
import { assertNoPendingCall } from '../tensor/pending-calls';
import { formatShape, isSameShape } from '../tensor/shape';
import { withMemoryCategory } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import type { AnyModule, LoadStateResult, StateDict } from './any-module';
import { parameterPaths } from './module-tree';

export function saveModuleState(module: AnyModule): StateDict {
  const named = [...module.namedParameters(), ...module.namedBuffers({ persistentOnly: true })];
  const copy = (tensor: Tensor): Tensor => withMemoryCategory('other', () => noGrad(() => tensor.clone()));
  return Object.fromEntries(named.map(([name, tensor]) => [name, copy(tensor)]));
}

/** See `Module.loadStateDict`. */
export function loadModuleState(
  module: AnyModule,
  state: Readonly<StateDict> | ReadonlyMap<string, Tensor>,
  strict: boolean,
): LoadStateResult {
  const what = `${module.constructor.name}.loadStateDict`;
  const given = entriesOf(state, what);
  const namesOf = allNames(module);
  for (const target of namesOf.keys()) assertNoPendingCall(target, what);
  const known = new Set([...namesOf.values()].flat());
  const unexpectedKeys = [...given.keys()].filter((name) => !known.has(name));
  const missingKeys: string[] = [];
  const problems: string[] = [];
  const copies: (() => void)[] = [];
  for (const [target, names] of namesOf) {
    const present = names.filter((name) => given.has(name));
    const source = given.get(present[0] as string);
    const problem = problemOf(target, present, given);
    if (present.length === 0) missingKeys.push(names[0] as string);
    else if (problem !== undefined) problems.push(problem);
    else copies.push(planCopy(target, source as Tensor));
  }
  if (strict && missingKeys.length > 0) problems.unshift(`missing ${quote(missingKeys, ', ')}`);
  if (strict && unexpectedKeys.length > 0) problems.unshift(`unexpected ${quote(unexpectedKeys, ', ')}`);
  if (problems.length > 0) {
    const advice = strict ? ' Pass { strict: false } to load what the two have in common.' : '';
    throw new InvalidArgumentError(`${what}: ${problems.join('; ')}. Nothing was changed.${advice}`);
  }
  for (const copy of copies) copy();
  return { missingKeys, unexpectedKeys };
}

function entriesOf(state: unknown, what: string): ReadonlyMap<string, unknown> {
  if (typeof state === 'object' && state !== null && !(state instanceof Tensor) && !Array.isArray(state)) {
    const isMap = Object.prototype.toString.call(state) === '[object Map]';
    return isMap ? (state as ReadonlyMap<string, unknown>) : new Map(Object.entries(state));
  }
  throw new InvalidArgumentError(`${what}: expected an object or a Map of tensors by name, got ${typeof state}.`);
}

/** Every parameter and saved buffer with its names, the first one first. */
function allNames(module: AnyModule): Map<Tensor, string[]> {
  const namesOf = new Map<Tensor, string[]>();
  for (const [name, tensor] of [...parameterPaths(module), ...module.namedBuffers({ persistentOnly: true })]) {
    const names = namesOf.get(tensor);
    if (names === undefined) namesOf.set(tensor, [name]);
    else names.push(name);
  }
  return namesOf;
}

/** Why the state's values of `target`, which it has under the names `present`, cannot be copied there. */
function problemOf(
  target: Tensor,
  present: readonly string[],
  given: ReadonlyMap<string, unknown>,
): string | undefined {
  const wrong = present.find((name) => mismatch(given.get(name), target) !== undefined);
  if (wrong !== undefined) return `'${wrong}': ${mismatch(given.get(wrong), target)}`;
  const [first, ...others] = present.map((name) => given.get(name) as Tensor);
  if (others.every((other) => isSameBits(other, first as Tensor))) return undefined;
  return `${quote(present, ' and ')} are one parameter here, but the state has different values for them`;
}

function mismatch(source: unknown, target: Tensor): string | undefined {
  if (!(source instanceof Tensor)) return `expected a tensor, got ${typeof source}`;
  if (!isSameShape(source.shape, target.shape)) {
    return `expected shape ${formatShape(target.shape)}, got ${formatShape(source.shape)}`;
  }
  const isConvertible = isFloatDType(source.dtype) && isFloatDType(target.dtype);
  return isConvertible || source.dtype === target.dtype ? undefined : `expected ${target.dtype}, got ${source.dtype}`;
}

function isSameBits(a: Tensor, b: Tensor): boolean {
  if (a.dtype !== b.dtype) return false;
  const [left, right] = [bytesOf(a.storage.buffer), bytesOf(b.storage.buffer)];
  return left.every((byte, i) => byte === right[i]);
}

/** A function that copies `source` into `target`; that their memory is there is checked now. */
function planCopy(target: Tensor, source: Tensor): () => void {
  const { buffer } = target.storage;
  const converted = (source.dtype === target.dtype ? source : noGrad(() => source.to(target.dtype))).storage;
  return () => copyBuffer(buffer, converted.buffer);
}

function quote(names: readonly string[], separator: string): string {
  return names.map((name) => `'${name}'`).join(separator);
}
