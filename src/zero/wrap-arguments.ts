/** What zeroWrap is given, checked. */
import type { Backend } from '../backend/backend';
import { InvalidArgumentError, UnsupportedError } from '../core/errors';
import type { AnyModule } from '../nn/any-module';
import { Optimizer } from '../optim/optimizer';
import type { ComparedList } from '../strategy/parameter-sync';
import { describeTensor } from '../tensor/describe';
import type { Tensor } from '../tensor/tensor';
import { buildDeferred } from './deferred-module';
import { checkShardDevice } from './shard-device';
import { parseZeroOptions, type ZeroOptions, type ZeroSettings } from './zero-options';

/** A module, or what builds one; an optimizer, or what makes one for the module. */
export type ModuleSource<M extends AnyModule> = M | (() => M);
export type OptimizerSource<M extends AnyModule, Settings extends { lr: number }> =
  Optimizer<Settings> | ((module: M) => Optimizer<Settings>);

export interface WrapArguments<M extends AnyModule, Settings extends { lr: number }> {
  readonly model: M;
  readonly inner: Optimizer<Settings>;
  readonly settings: ZeroSettings;
}

/** @throws InvalidArgumentError or UnsupportedError, with nothing changed */
export function prepareWrap<M extends AnyModule, Settings extends { lr: number }>(
  module: ModuleSource<M>,
  optimizer: OptimizerSource<M, Settings>,
  options: ZeroOptions,
  backend: Backend,
): WrapArguments<M, Settings> {
  const settings = parseZeroOptions(options);
  refuseClass(module, 'namedParameters', 'module', '`new $()`, or a function that builds one: `() => new $()`');
  refuseClass(optimizer, 'step', 'optimizer', '`(module) => new $(module.parameters())`');
  const isFactory = typeof module === 'function';
  if (isFactory && typeof optimizer !== 'function') {
    refuse('the module is a function, so the optimizer has to be one too: (module) => new AdamW(module.parameters())');
  }
  const model = isFactory ? buildDeferred(module) : module;
  checkModule(model, isFactory);
  const inner = typeof optimizer === 'function' ? optimizer(model) : optimizer;
  checkParameters(model);
  checkOptimizer(inner, model);
  checkShardDevice(inner, model, settings, backend);
  return { model, inner, settings };
}

/** Kind, and each group's settings and parameters, for the comparison over the ranks. */
export function describeOptimizer({ constructor, paramGroups }: Optimizer, model: AnyModule): ComparedList {
  const names = new Map<Tensor, string>(model.namedParameters().map(([name, parameter]) => [parameter, name]));
  const groups = paramGroups.flatMap(({ params, ...settings }) => [
    JSON.stringify(settings),
    params.map((parameter) => names.get(parameter)).join(', '),
  ]);
  const labelOf = (index: number): string => {
    if (index === 0) return 'the optimizer';
    return `${index % 2 === 1 ? 'settings' : 'parameters'} of optimizer group ${Math.floor((index - 1) / 2)}`;
  };
  return { labelOf, entries: [constructor.name, ...groups] };
}

/** @param method what tells it from a function that builds one */
function refuseClass(given: unknown, method: string, what: string, advice: string): void {
  if (
    typeof given !== 'function' ||
    typeof (given.prototype as Record<string, unknown> | undefined)?.[method] !== 'function'
  )
    return;
  refuse(`expected the ${what} itself, got the class ${given.name}. Pass ${advice.replaceAll('$', given.name)}`);
}

function checkModule(model: unknown, isFactory: boolean): void {
  if (typeof (model as Partial<AnyModule> | null | undefined)?.namedParameters === 'function') return;
  const got = model === null ? 'null' : typeof model;
  refuse(
    isFactory
      ? `expected the function to return a Module, it returned ${got}. Build the module in it, without await`
      : `expected a Module, or a function that builds one, as the first argument, got ${got}`,
  );
}

function checkParameters(model: AnyModule): void {
  const trainable = model.namedParameters().filter(([, parameter]) => parameter.requiresGrad);
  if (trainable.length === 0) {
    refuse(
      'the module has no trainable parameter, so there is nothing to train. Parameters must be assigned to enumerable properties (not to #private fields, Maps or closures)',
    );
  }
  const taken = trainable.find(([, parameter]) => parameter.gradientGate !== undefined);
  if (taken === undefined) return;
  refuse(
    `parameter '${taken[0]}' is wrapped already, and its gradient can be averaged by one wrapper only. Call detach() on the other one first; in a mock world, build the module inside each rank's function, since one that is built outside is shared by all ranks`,
  );
}

function checkOptimizer(inner: unknown, model: AnyModule): void {
  if (!(inner instanceof Optimizer)) {
    refuse(
      `expected an Optimizer, or a function that makes one for the module, as the second argument, got ${inner === null ? 'null' : typeof inner}`,
    );
  }
  if (!inner.isElementwise) {
    throw new UnsupportedError(
      `zeroWrap: ${inner.constructor.name} has isElementwise false: it looks at whole parameters, and here each rank updates any run of elements. Use SGD, Adam, AdamW, or an optimizer whose update treats every element by itself; or DistributedDataParallel.`,
      { op: 'zeroWrap' },
    );
  }
  const listed = new Set<Tensor>(model.parameters());
  const foreign = inner.parameters.find((parameter) => !listed.has(parameter));
  if (foreign !== undefined) {
    refuse(
      `the optimizer updates ${describeTensor(foreign)}, which the module does not list. Assign it to a property of the module, or give it an optimizer of its own`,
    );
  }
  const used = inner.parameters.find((parameter) => inner.stateOf(parameter) !== undefined);
  if (used === undefined) return;
  refuse(
    `the optimizer has state of ${describeTensor(used)} already. Wrap it before the first step; to go on from a saved state, pass that to loadStateDict of the optimizer that zeroWrap returns`,
  );
}

function refuse(message: string): never {
  throw new InvalidArgumentError(`zeroWrap: ${message}.`, { op: 'zeroWrap' });
}
