/** What an optimizer is given to work on, checked. */
import { isFloatDType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { Module } from '../nn/module';
import { describeTensor } from '../tensor/describe';
import { Tensor } from '../tensor/tensor';

/** Parameters that are updated with the same settings. Settings may be changed between steps. */
export type ParamGroup<Settings> = Settings & { readonly params: readonly Tensor[] };

/** A group as a caller gives it; settings that it leaves out are those given to the optimizer. */
export type ParamGroupOptions<Options> = Options & { readonly params: Iterable<Tensor> };

/** Parameters (or leaf tensors), or groups of them. */
export type OptimizerParams<Options> = Iterable<Tensor> | Iterable<ParamGroupOptions<Options>>;

/** Turns options into complete settings; throws an InvalidArgumentError that opens with `what`. */
export type ParseSettings<Settings> = (options: unknown, what: string) => Settings;

/**
 * The groups that `params` describes, one group for a plain list of parameters.
 * @throws InvalidArgumentError for an empty list, anything that is no trainable leaf, a parameter listed twice, or a
 *   setting that does not parse
 */
export function makeParamGroups<Settings extends object, Options extends object>(
  params: OptimizerParams<Options>,
  options: Options | undefined,
  parse: ParseSettings<Settings>,
  what: string,
): ParamGroup<Settings>[] {
  parse(options, what); // names what is wrong with the defaults even where every group overrides them
  const items = listOf(params, what);
  if (items.length === 0)
    throw new InvalidArgumentError(`${what}: expected at least one parameter, got an empty list.`);
  const areGroups = items.every((item) => isGroup(item));
  const groups = areGroups ? (items as ParamGroupOptions<Options>[]) : [{ params: items as Tensor[] }];
  const made: ParamGroup<Settings>[] = [];
  for (const [index, group] of groups.entries()) {
    made.push(makeParamGroup(group, options, parse, areGroups ? `${what}: group ${index}` : what, made));
  }
  return made;
}

/** One group more, whose parameters must not be in `others`. */
export function makeParamGroup<Settings extends object>(
  group: { readonly params: Iterable<Tensor> },
  defaults: object | undefined,
  parse: ParseSettings<Settings>,
  what: string,
  others: readonly ParamGroup<unknown>[],
): ParamGroup<Settings> {
  const { params, ...settings } = group;
  const list = listOf(params, what) as Tensor[];
  if (list.length === 0) throw new InvalidArgumentError(`${what}: expected at least one parameter, got an empty list.`);
  const seen = new Set<Tensor>(others.flatMap((other) => other.params));
  for (const [index, parameter] of list.entries()) {
    checkParameter(parameter, index, what);
    if (seen.has(parameter)) {
      throw new InvalidArgumentError(
        `${what}: ${describeTensor(parameter)} is listed twice; every parameter belongs to one group, once. ` +
          'module.parameters() lists a tied parameter once.',
      );
    }
    seen.add(parameter);
  }
  return { ...parse({ ...defaults, ...settings }, what), params: list };
}

function isGroup(item: unknown): boolean {
  return typeof item === 'object' && item !== null && !(item instanceof Tensor) && 'params' in item;
}

/**
 * The items of what should be a list of parameters or groups.
 * @throws InvalidArgumentError for what is none, with what to pass instead
 */
export function listOf(params: unknown, what: string): unknown[] {
  if (params instanceof Module) {
    throw new InvalidArgumentError(`${what}: expected parameters, got a Module. Pass module.parameters().`);
  }
  if (params instanceof Tensor) {
    throw new InvalidArgumentError(`${what}: expected a list of parameters, got one. Pass [parameter].`);
  }
  if (typeof params === 'object' && params !== null && Symbol.iterator in params)
    return [...(params as Iterable<unknown>)];
  throw new InvalidArgumentError(`${what}: expected a list of parameters or of groups, got ${describeValue(params)}.`);
}

function checkParameter(parameter: unknown, index: number, what: string): void {
  if (!(parameter instanceof Tensor)) {
    throw new InvalidArgumentError(
      `${what}: expected a Parameter or a leaf tensor at index ${index}, got ${describeValue(parameter)}.`,
    );
  }
  if (!parameter.isLeaf) {
    throw new InvalidArgumentError(
      `${what}: ${describeTensor(parameter)} at index ${index} was computed from other tensors, so its gradient is not ` +
        'kept. Pass the leaf tensors it was computed from.',
    );
  }
  if (!isFloatDType(parameter.dtype)) {
    throw new InvalidArgumentError(
      `${what}: expected a floating point parameter at index ${index}, got ${describeTensor(parameter)}.`,
    );
  }
}

export function describeValue(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  const [name] = /\w+(?=\]$)/.exec(Object.prototype.toString.call(value)) ?? ['object'];
  return `an ${name}`;
}
