/** What a checkpoint is made from, and loaded into. */
import { InvalidArgumentError } from '../core/errors';
import type { Generator } from '../core/generator';
import type { AnyModule } from '../nn/any-module';
import { Optimizer } from '../optim/optimizer';
import type { ScalableOptimizer } from '../optim/scalable-optimizer';
import type { ProcessGroup } from '../process-group/process-group';
import { partedStateOf, type PartedState } from '../strategy/state-parts';
import { WholeModel } from './whole-model';
import { WholeOptimizer } from './whole-optimizer';
import type { Stateful } from './small-state';

/** Anything with a state that a checkpoint holds. All but the model may be left out. */
export interface CheckpointState {
  /** A plain Module, one under DistributedDataParallel (either is held whole by every rank), or what `zeroWrap` gives. */
  readonly model: AnyModule;
  /** An Optimizer over parameters of the model, or what `zeroWrap` gives. */
  readonly optimizer?: ScalableOptimizer | undefined;
  readonly scheduler?: Stateful | undefined;
  readonly scaler?: Stateful | undefined;
  /** Each rank's own place in the data. */
  readonly sampler?: Stateful | undefined;
  /** Generators of the program's own, each rank's; the default generator of every rank is always saved. */
  readonly generator?: Generator | readonly Generator[] | undefined;
  /** The number of the checkpoint: steps done so far. Not looked at when loading. */
  readonly step?: number | undefined;
}

export interface StateHolders {
  readonly model: PartedState;
  readonly optimizer: PartedState | undefined;
}

const FIELDS = ['model', 'optimizer', 'scheduler', 'scaler', 'sampler', 'generator', 'step'];
const STATEFUL = ['scheduler', 'scaler', 'sampler'] as const;

/**
 * Who holds the model's and the optimizer's state.
 * @throws InvalidArgumentError naming what is not such an object
 */
export function holdersOf(state: CheckpointState, group: ProcessGroup): StateHolders {
  checkState(state);
  const { model, optimizer } = state;
  return {
    model: partedStateOf(model) ?? new WholeModel(model, group),
    optimizer: optimizer === undefined ? undefined : optimizerHolder(optimizer, model, group),
  };
}

function optimizerHolder(optimizer: object, model: AnyModule, group: ProcessGroup): PartedState {
  const parted = partedStateOf(optimizer);
  if (parted !== undefined) return parted;
  if (optimizer instanceof Optimizer) return new WholeOptimizer(optimizer as Optimizer, model, group);
  throw new InvalidArgumentError('state.optimizer: expected an Optimizer, or the optimizer that zeroWrap returned.');
}

function checkState(state: CheckpointState): void {
  if (typeof state !== 'object' || state === null) {
    throw new InvalidArgumentError(`expected a state such as { model, optimizer }, got ${String(state)}.`);
  }
  const unknown = Object.keys(state).find((key) => !FIELDS.includes(key));
  if (unknown !== undefined) {
    throw new InvalidArgumentError(`state: unknown key '${unknown}'. A state has ${FIELDS.join(', ')}.`);
  }
  if (typeof (state.model as Partial<AnyModule> | undefined)?.namedParameters !== 'function') {
    throw new InvalidArgumentError(`state.model: expected a Module, got ${typeof state.model}.`);
  }
  if (state.optimizer !== undefined && (typeof state.optimizer !== 'object' || state.optimizer === null)) {
    throw new InvalidArgumentError(`state.optimizer: expected an Optimizer, got ${typeof state.optimizer}.`);
  }
  for (const name of STATEFUL) {
    const object = state[name] as Partial<Stateful> | null | undefined;
    const isStateful = typeof object?.stateDict === 'function' && typeof object.loadStateDict === 'function';
    if (object !== undefined && !isStateful) {
      throw new InvalidArgumentError(`state.${name}: expected an object with stateDict() and loadStateDict(state).`);
    }
  }
}
