/** The saved form of an optimizer: to it, and back with every check before the first change. */
import { isFloatDType } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import { noGrad } from '../tensor/gradient-mode';
import { formatShape, isSameShape } from '../tensor/shape';
import { withMemoryCategory } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';
import { MASTER, needsMaster } from './master-copy';
import type { ParamGroup, ParseSettings } from './param-group';
import { type ParameterState, stateDTypeOf } from './parameter-state';

/** State of one parameter: its step count, and the optimizer's buffers by name. */
export interface SavedParameterState {
  readonly step: number;
  readonly [buffer: string]: number | Tensor;
}

/** A group's settings, and the indices of its parameters, counted over all groups. */
export interface SavedParamGroup {
  readonly params: readonly number[];
  readonly [setting: string]: unknown;
}

/** What `Optimizer.stateDict` gives: the form of PyTorch, plain objects and tensors. */
export interface OptimizerState {
  /** By parameter index; parameters that were never updated are left out. */
  readonly state: Readonly<Record<string, SavedParameterState>>;
  readonly paramGroups: readonly SavedParamGroup[];
}

/** What `loadOptimizerState` found, ready to be taken over. */
export interface LoadedState<Settings> {
  readonly settings: readonly Settings[];
  readonly states: ReadonlyMap<Tensor, ParameterState>;
}

export function saveOptimizerState(
  groups: readonly ParamGroup<object>[],
  states: ReadonlyMap<Tensor, ParameterState>,
): OptimizerState {
  const state: Record<string, SavedParameterState> = {};
  const paramGroups: SavedParamGroup[] = [];
  let nextIndex = 0;
  for (const { params, ...settings } of groups) {
    const indices = params.map((parameter) => {
      const index = nextIndex++;
      const kept = states.get(parameter);
      if (kept !== undefined) state[index] = { ...mapValues(kept.buffers, copyTensor), step: kept.step };
      return index;
    });
    paramGroups.push({ ...structuredClone(settings), params: indices });
  }
  return { state, paramGroups };
}

/** @throws InvalidArgumentError that says what of the state does not fit these groups */
export function loadOptimizerState<Settings>(
  saved: OptimizerState,
  groups: readonly ParamGroup<object>[],
  parse: ParseSettings<Settings>,
  stateNames: (settings: Settings) => readonly string[],
  what: string,
): LoadedState<Settings> {
  checkForm(saved, groups, what);
  const settings: Settings[] = [];
  const states = new Map<Tensor, ParameterState>();
  const unused = new Set(Object.keys(saved.state));
  for (const [groupIndex, group] of groups.entries()) {
    const { params, ...given } = saved.paramGroups[groupIndex] as SavedParamGroup;
    const parsed = parse(given, `${what}: paramGroups[${groupIndex}]`);
    settings.push(parsed);
    for (const [position, parameter] of group.params.entries()) {
      const index = String(params[position]);
      const kept = saved.state[index];
      unused.delete(index);
      if (kept !== undefined) {
        states.set(parameter, loadParameterState(kept, parameter, stateNames(parsed), `${what}: state[${index}]`));
      }
    }
  }
  if (unused.size > 0) {
    throw new InvalidArgumentError(`${what}: no group lists the parameters of state ${[...unused].join(', ')}.`);
  }
  return { settings, states };
}

function checkForm(saved: OptimizerState, groups: readonly ParamGroup<object>[], what: string): void {
  const isForm =
    typeof saved === 'object' &&
    saved !== null &&
    typeof saved.state === 'object' &&
    saved.state !== null &&
    Array.isArray(saved.paramGroups) &&
    saved.paramGroups.every((group: Partial<SavedParamGroup> | null) => Array.isArray(group?.params));
  if (!isForm) throw new InvalidArgumentError(`${what}: expected what stateDict() gave, { state, paramGroups }.`);
  const sizes = (list: readonly { readonly params: readonly unknown[] }[]): string =>
    `${list.length} groups of ${list.map((group) => group.params.length).join(', ')} parameters`;
  if (sizes(saved.paramGroups) !== sizes(groups)) {
    throw new InvalidArgumentError(
      `${what}: the state has ${sizes(saved.paramGroups)}, this optimizer has ${sizes(groups)}. ` +
        'Make the optimizer with the same groups as the one that was saved.',
    );
  }
}

function loadParameterState(
  kept: SavedParameterState,
  parameter: Tensor,
  names: readonly string[],
  what: string,
): ParameterState {
  const { step, ...buffers } = kept;
  if (!Number.isSafeInteger(step) || step < 1) {
    throw new InvalidArgumentError(`${what}.step: expected a whole number above 0, got ${String(step)}.`);
  }
  const missing = names.filter((name) => !(name in buffers));
  // a state from before there were master copies has none: they start from the parameter
  const allowed = needsMaster(parameter.dtype) ? [...names, MASTER] : names;
  const unexpected = Object.keys(buffers).filter((name) => !allowed.includes(name));
  if (missing.length > 0 || unexpected.length > 0) {
    throw new InvalidArgumentError(
      `${what}: expected the buffers ${names.join(', ') || '(none)'}, got ${Object.keys(buffers).join(', ') || 'none'}. ` +
        (unexpected.includes(MASTER)
          ? `A master copy belongs to a 16-bit parameter, and this one is ${parameter.dtype}.`
          : 'It was saved by another kind of optimizer or with other settings.'),
    );
  }
  return { step, buffers: mapValues(buffers, (value, name) => loadBuffer(value, parameter, `${what}.${name}`)) };
}

function loadBuffer(value: unknown, parameter: Tensor, what: string): Tensor {
  if (!(value instanceof Tensor) || !isSameShape(value.shape, parameter.shape) || !isFloatDType(value.dtype)) {
    const got = value instanceof Tensor ? `${value.dtype} ${formatShape(value.shape)}` : String(value);
    throw new InvalidArgumentError(
      `${what}: expected a floating point tensor of shape ${formatShape(parameter.shape)}, got ${got}.`,
    );
  }
  const dtype = stateDTypeOf(parameter.dtype);
  return keep(
    withMemoryCategory('optimizer', () => noGrad(() => (value.dtype === dtype ? value.clone() : value.to(dtype)))),
  );
}

function copyTensor(tensor: Tensor): Tensor {
  return withMemoryCategory('other', () => noGrad(() => tensor.clone()));
}

function mapValues<A, B>(record: Readonly<Record<string, A>>, fn: (value: A, key: string) => B): Record<string, B> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, fn(value, key)]));
}
