import { checkGroup } from '../comm/group-argument';
import { InvalidArgumentError, NotInGroupError, asError } from '../core/errors';
import { stderrLogger } from '../core/logger';
import { ScratchPool } from '../core/scratch-pool';
import type { AnyModule } from '../nn/any-module';
import type { Optimizer } from '../optim/optimizer';
import { GuardedEmitter } from '../process-group/guarded-emitter';
import type { ProcessGroup } from '../process-group/process-group';
import { GRADIENT_EVENTS, type GradientEvents } from '../strategy/gradient-events';
import { broadcastTensors, checkSameModule } from '../strategy/parameter-sync';
import { describeTensor } from '../tensor/describe';
import type { Tensor } from '../tensor/tensor';
import { BoundaryScale } from './boundary-scale';
import { materializeRest } from './deferred-module';
import type { FlatUnit } from './flat-unit';
import { grantFullAccess } from './full-parameters';
import { planGatherUnits, scheduleOf, type GatherPlan } from './gather-plan';
import { GatherSchedule } from './gather-schedule';
import type { GatherUnit } from './gather-unit';
import { GradientEngine } from './gradient-engine';
import { guardPrecision } from './precision';
import { openShards } from './shard-device';
import { ShardedState } from './sharded-state';
import { startUnit } from './start-unit';
import { UnitGradients, type GradientHome } from './unit-gradients';
import { namedParametersOf, planBucketUnits, type PlannedUnit } from './unit-plan';
import { describeOptimizer, prepareWrap, type ModuleSource, type OptimizerSource } from './wrap-arguments';
import { ZeroModule } from './zero-module';
import { ZeroOptimizer } from './zero-optimizer';
import type { ZeroOptions, ZeroSettings } from './zero-options';

export interface ZeroWrapped<M extends AnyModule, Settings extends { lr: number }> {
  readonly module: ZeroModule<M>;
  readonly optimizer: ZeroOptimizer<Settings>;
}

/**
 * Train one module on every rank of a group with its training state sharded over them (Rajbhandari et al., ZeRO,
 * arXiv 1910.02054). Every rank calls it. The training loop is the same for every stage:
 *
 *     const { module, optimizer } = await zeroWrap(model, new AdamW(model.parameters()), world.group, { stage: 2 });
 *     const loss = crossEntropy(await module.forward(inputs), labels);
 *     await loss.backward();
 *     await optimizer.clipGradNorm(1);
 *     await optimizer.step();
 *     optimizer.zeroGrad();
 *
 * All ranks start from rank 0's parameters and buffers. In float32 losses and parameters have the bits of
 * DistributedDataParallel, at every stage. After backward `.grad` is undefined where the whole gradient no longer exists
 * (stages 1 to 3); synchronised backwards that add up (without noSync between them) agree with DDP to rounding.
 *
 * The module and the optimizer that are passed in belong to the wrapper from then on: forward, step, clip and zeroGrad go
 * through what is returned (calls that would give wrong numbers reject). A parameter in no group of the optimizer is
 * averaged and not updated, as with DDP; freeze it (requiresGrad = false) to save that. Frozen parameters keep their dtype, and
 * stay replicated in stages 0 to 2. `module.detach()` gives both back, without the optimizer's state.
 *
 * @param module built, or a function that builds it: stage 3 then creates its parameters unit by unit, so that no rank ever
 *   holds all of them; the optimizer has to be a function too
 * @param optimizer any Optimizer whose `isElementwise` is true, without state
 * @throws InvalidArgumentError on every rank, with nothing changed, if the ranks' modules, options or groups differ, or one
 *   of the arguments cannot be used; the group lives on
 * @throws NotInGroupError on a rank outside `group`
 */
export async function zeroWrap<M extends AnyModule, Settings extends { lr: number }>(
  module: ModuleSource<M>,
  optimizer: OptimizerSource<M, Settings>,
  group: ProcessGroup,
  options: ZeroOptions = {},
): Promise<ZeroWrapped<M, Settings>> {
  checkGroup(group, 'zeroWrap');
  if (!group.isMember) {
    throw new NotInGroupError(
      `zeroWrap: this rank is not a member of the group (ranks ${group.ranks.join(', ')}). Wrap the module only where group.isMember is true.`,
      { op: 'zeroWrap' },
    );
  }
  const { model, inner, settings } = await onAllRanks(group, () =>
    prepareWrap(module, optimizer, options, group.backend),
  );
  await checkAgreement(model, inner, settings, group);
  const events = new GuardedEmitter<GradientEvents>(GRADIENT_EVENTS, options.logger ?? stderrLogger);
  const plan =
    settings.stage === 3
      ? planGatherUnits(model, settings, group.size)
      : { units: planBucketUnits(namedParametersOf(model), settings, group.size), gathers: [] };
  const state = new ShardedState(openShards(settings, group.backend));
  const flats = await makeUnits(plan.units, group, state);
  materializeRest(model, flats);
  await broadcastRest(model, flats, group);
  const scratchPool = new ScratchPool();
  const units = flats
    .filter(({ isTrainable }) => isTrainable)
    .map((flat) => new UnitGradients(flat, homeOf(settings), group, scratchPool));
  const launch = settings.stage === 3 ? 'at release' : 'in order';
  const maxInFlight = settings.stage < 2 ? Infinity : 2;
  const engine = new GradientEngine(units, group, { ...settings, launch, maxInFlight, scratchPool }, events);
  const boundary =
    settings.precision === 'float16' ? new BoundaryScale(settings.lossScale, () => hasGradients(units)) : undefined;
  const guard = guardPrecision(model, settings.precision);
  const schedule = makeSchedule(model, plan, flats, engine, settings);
  const giveBack = (): void => {
    guard?.();
    inner.handOver(undefined);
  };
  const wrapped = new ZeroModule({
    module: model,
    group,
    settings,
    engine,
    events,
    flats,
    boundary,
    schedule,
    bringDown: () => state.bringDown(),
    giveBack,
  });
  if (schedule !== undefined) {
    for (const part of wrapped.modules()) grantFullAccess(part, schedule, flats);
  }
  inner.handOver('zeroWrap');
  return {
    module: wrapped,
    optimizer: new ZeroOptimizer({
      inner,
      units,
      state,
      engine,
      group,
      boundary,
      schedule,
      nameOf: nameIn(model),
      isSharded: settings.stage > 0,
    }),
  };
}

function nameIn(model: AnyModule): (parameter: Tensor) => string {
  const names = new Map<Tensor, string>(model.namedParameters().map(([name, parameter]) => [parameter, name]));
  return (parameter) => names.get(parameter) ?? describeTensor(parameter);
}

function homeOf({ stage }: ZeroSettings): GradientHome {
  return stage === 0 ? 'grad' : stage === 1 ? 'buffer' : 'part';
}

function hasGradients(units: readonly UnitGradients[]): boolean {
  return units.some((unit) => unit.names.some((_name, slot) => unit.hasGradient(slot)));
}

/** Stage 3: gather and release while modules run; gradients are averaged when a unit is released in backward. */
function makeSchedule(
  root: AnyModule,
  plan: GatherPlan,
  flats: readonly FlatUnit[],
  engine: GradientEngine,
  { reshardAfterForward, prefetch }: ZeroSettings,
): GatherSchedule | undefined {
  if (plan.gathers.length === 0) return undefined;
  const scheduled = scheduleOf(plan, flats);
  const flatsOf = new Map<GatherUnit, readonly FlatUnit[]>();
  scheduled.forEach(({ unit }, index) => {
    flatsOf.set(unit, plan.gathers[index]?.units.map((flat) => flats[flat] as FlatUnit) ?? []);
  });
  const onBackwardDone = (unit: GatherUnit): void => flatsOf.get(unit)?.forEach((flat) => engine.unitReleased(flat));
  return new GatherSchedule(scheduled, { root, reshardAfterForward, prefetch, onBackwardDone });
}

/** Run `prepare`; what one rank refuses, all refuse, so that none waits for the others in vain. */
async function onAllRanks<T>(group: ProcessGroup, prepare: () => T): Promise<T> {
  let prepared: T | undefined;
  let refusal: Error | undefined;
  try {
    prepared = prepare();
  } catch (thrown) {
    refusal = asError(thrown);
  }
  const refusals = await group.allGatherObjects(refusal?.message);
  if (refusal !== undefined) throw refusal;
  const rank = refusals.findIndex((message) => message !== undefined);
  if (rank < 0) return prepared as T;
  throw new InvalidArgumentError(`zeroWrap: rank ${rank} refused: ${refusals[rank]?.replace(/^zeroWrap: /, '')}`, {
    op: 'zeroWrap',
    ranks: [rank],
  });
}

async function checkAgreement(
  model: AnyModule,
  inner: Optimizer,
  settings: ZeroSettings,
  group: ProcessGroup,
): Promise<void> {
  const tensors = [...model.namedParameters(), ...model.namedBuffers()].map(([name, tensor]) => ({ name, tensor }));
  await checkSameModule(tensors, { ...settings }, group, 'zeroWrap', [describeOptimizer(inner, model)]);
}

/** Move the parameters into their units, with rank 0's values; one unit after the other, so that little is held twice. */
async function makeUnits(
  planned: readonly PlannedUnit[],
  group: ProcessGroup,
  state: ShardedState,
): Promise<FlatUnit[]> {
  const units: FlatUnit[] = [];
  for (const [index, plan] of planned.entries()) {
    const { unit, masters } = await startUnit(index, plan, group);
    units.push(unit);
    for (const [piece, master] of masters) state.startMaster(piece, master);
  }
  return units;
}

/** Rank 0's values of what is in no unit: frozen parameters, buffers. */
async function broadcastRest(model: AnyModule, units: readonly FlatUnit[], group: ProcessGroup): Promise<void> {
  const inUnits = new Set<Tensor>(units.flatMap(({ members }) => members.map(({ parameter }) => parameter)));
  const rest = [...model.namedParameters(), ...model.namedBuffers()]
    .map(([name, tensor]) => ({ name, tensor: tensor }))
    .filter(({ tensor }) => !inUnits.has(tensor));
  await broadcastTensors(rest, 0, group);
}
