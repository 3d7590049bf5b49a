/** Which saved tensor belongs to which of a module's. */
import { InvalidArgumentError } from '../core/errors';
import type { AnyModule } from '../nn/any-module';
import { parameterPaths } from '../nn/module-tree';
import { formatShape, isSameShape } from '../tensor/shape';
import type { Tensor } from '../tensor/tensor';
import type { StateReader, TensorForm } from './state-parts';

/**
 * The saved name of each parameter and saved buffer of `module`. A tied parameter has several names, of which one was saved.
 * @throws InvalidArgumentError that lists missing and unexpected names, and shapes that differ
 */
export function findSources(module: AnyModule, reader: StateReader): Map<Tensor, string> {
  const targets = targetsOf(module);
  const sources = new Map<Tensor, string>();
  const known = new Set([...targets.values()].flat());
  const missing: string[] = [];
  const problems: string[] = [];
  for (const [target, names] of targets) {
    const name = names.find((candidate) => reader.formOf(candidate) !== undefined);
    if (name === undefined) {
      missing.push(names[0] as string);
      continue;
    }
    sources.set(target, name);
    const { shape } = reader.formOf(name) as TensorForm;
    if (!isSameShape(shape, target.shape)) {
      problems.push(`'${name}' has shape ${formatShape(shape)} there and ${formatShape(target.shape)} here`);
    }
  }
  const unexpected = reader.names.filter((name) => !known.has(name));
  if (unexpected.length > 0) problems.unshift(`the model has no ${quote(unexpected)}`);
  if (missing.length > 0) problems.unshift(`it has no ${quote(missing)}`);
  if (problems.length === 0) return sources;
  throw new InvalidArgumentError(`the checkpoint is of another model: ${problems.join('; ')}.`);
}

function quote(names: readonly string[]): string {
  const shown = names.slice(0, 10).map((name) => `'${name}'`);
  const others = names.length - shown.length;
  return `${shown.join(', ')}${others > 0 ? ` and ${others} more` : ''}`;
}

/** All that is saved, each with its names, the one that it is listed under first. */
function targetsOf(module: AnyModule): Map<Tensor, string[]> {
  const targets = new Map<Tensor, string[]>();
  const named = [...module.namedParameters(), ...module.namedBuffers({ persistentOnly: true })];
  for (const [name, tensor] of named) targets.set(tensor, [name]);
  for (const [name, parameter] of parameterPaths(module)) {
    const names = targets.get(parameter);
    if (names !== undefined && !names.includes(name)) names.push(name);
  }
  return targets;
}
