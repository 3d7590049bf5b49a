/**
 * The small values of an optimizer in a saved state: settings of groups, and step counts by parameter name.
 *
 * Every form of an optimizer, plain or sharded, writes this one, so that each loads what another saved. Its buffers are
 * tensors beside it, named `<parameter>/<buffer>`: `blocks.0.fc1.weight/expAvg`.
 */
import { z } from 'zod';
import type { DType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { MASTER, needsMaster } from '../optim/master-copy';
import { checkedJson } from './json-value';
import type { JsonValue, StateReader } from './state-parts';

export interface OptimizerValues {
  readonly groups: readonly {
    /** Names, in the group's order. */
    readonly parameters: readonly string[];
    readonly settings: { readonly [name: string]: JsonValue };
  }[];
  /** Updates so far, of each parameter that has had one. */
  readonly steps: { readonly [parameter: string]: number };
  /** Of a strategy that scales the loss by itself: ZeRO in float16. */
  readonly lossScale?: JsonValue | undefined;
}

const schema = z.strictObject({
  groups: z.array(
    z.strictObject({ parameters: z.array(z.string()), settings: z.record(z.string(), z.custom<JsonValue>()) }),
  ),
  steps: z.record(z.string(), z.int().min(1)),
  lossScale: z.custom<JsonValue>().optional(),
});

/**
 * The values to save.
 * @param stepOf updates of the parameter so far; 0 or undefined before the first
 * @throws InvalidArgumentError for a setting that JSON does not hold
 */
export function optimizerValues<Parameter>(
  groups: readonly { readonly params: readonly Parameter[] }[],
  nameOf: (parameter: Parameter) => string,
  stepOf: (parameter: Parameter) => number | undefined,
): { readonly [key: string]: JsonValue } {
  const steps: Record<string, number> = {};
  const named = groups.map(({ params, ...settings }, index) => {
    const parameters = params.map(nameOf);
    params.forEach((parameter, i) => {
      const step = stepOf(parameter) ?? 0;
      if (step > 0) steps[parameters[i] as string] = step;
    });
    const given = Object.entries(settings).filter(([, value]) => value !== undefined); // undefined is not given
    const values = checkedJson(Object.fromEntries(given), `optimizer.paramGroups[${index}]`);
    return { parameters, settings: values as { readonly [name: string]: JsonValue } };
  });
  return { groups: named, steps };
}

/**
 * Saved values, checked against the groups of an optimizer that is to take them over.
 * @param groups the names of the parameters of each group
 * @throws InvalidArgumentError if they are not of this form, or of other groups
 */
export function parseOptimizerValues(
  values: { readonly [key: string]: JsonValue },
  groups: readonly (readonly string[])[],
  what: string,
): OptimizerValues {
  const saved = parseOptions(schema, values, `${what}: the saved optimizer`);
  if (saved.groups.length !== groups.length) {
    throw new InvalidArgumentError(
      `${what}: the saved optimizer has ${saved.groups.length} parameter groups, this one has ${groups.length}. ${ADVICE}`,
    );
  }
  groups.forEach((names, index) => {
    const savedNames = saved.groups[index]?.parameters ?? [];
    const [missing] = names.filter((name) => !savedNames.includes(name));
    const [unexpected] = savedNames.filter((name) => !names.includes(name));
    const difference = missing ?? unexpected;
    if (difference === undefined) return;
    const where = missing === undefined ? 'only in the saved one' : 'not in the saved one';
    throw new InvalidArgumentError(`${what}: parameter '${difference}' of group ${index} is ${where}. ${ADVICE}`);
  });
  return saved;
}

/**
 * The buffers of a parameter that are to be read: those that the optimizer keeps, and the master copy if there is one.
 * @param stateNames what the optimizer keeps
 * @throws InvalidArgumentError unless the buffers that were saved are those that the optimizer keeps
 */
export function savedBuffers(
  reader: StateReader,
  parameter: string,
  dtype: DType,
  stateNames: readonly string[],
): readonly string[] {
  const isSaved = (name: string): boolean => reader.formOf(`${parameter}/${name}`) !== undefined;
  const unexpected = reader.names
    .filter((name) => name.startsWith(`${parameter}/`))
    .map((name) => name.slice(parameter.length + 1))
    .filter((name) => name !== MASTER && !stateNames.includes(name));
  const missing = stateNames.filter((name) => !isSaved(name));
  if (missing.length > 0 || unexpected.length > 0) {
    throw new InvalidArgumentError(
      `the checkpoint is of another optimizer: for '${parameter}' this one keeps ${stateNames.join(', ') || 'nothing'}` +
        `${missing.length > 0 ? `, and there is no ${missing.join(', ')}` : ''}` +
        `${unexpected.length > 0 ? `, and there is also ${unexpected.join(', ')}` : ''}.`,
    );
  }
  return needsMaster(dtype) && isSaved(MASTER) ? [...stateNames, MASTER] : stateNames;
}

const ADVICE = 'Make the optimizer with the same groups as the one that was saved.';
