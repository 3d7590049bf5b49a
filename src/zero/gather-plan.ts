import type { AnyModule } from '../nn/any-module';
import type { FlatUnit, NamedParameter } from './flat-unit';
import { GatherUnit } from './gather-unit';
import type { ScheduledUnit } from './gather-schedule';
import { assignUnits } from './unit-assignment';
import { namedParametersOf, planBucketUnits, planFor, type PlannedUnit } from './unit-plan';
import type { ZeroSettings } from './zero-options';

/** Flat buffers that are gathered together, before they have memory. */
export interface PlannedGather {
  /** Name of the module whose unit it is; '' for the root. */
  readonly name: string;
  readonly modules: readonly AnyModule[];
  /** One for each dtype, trainable and frozen apart: indices in `GatherPlan.units`. */
  readonly units: readonly number[];
}

export interface GatherPlan {
  /** All units of stage 3, those that persist first. */
  readonly units: readonly PlannedUnit[];
  readonly gathers: readonly PlannedGather[];
}

/**
 * The units of stage 3: those of [Note: gather units], which hold their parts only, frozen parameters included; and buckets
 * as in stage 2 of the trainable parameters that persist. Small frozen ones stay replicas.
 */
export function planGatherUnits(model: AnyModule, settings: ZeroSettings, numRanks: number): GatherPlan {
  const { mergeThreshold = defaultMergeThreshold(model), persistenceThreshold } = settings;
  const assigned = assignUnits(model, { mergeElements: mergeThreshold, persistenceThreshold });
  const named = new Map(namedParametersOf(model).map((member) => [member.parameter, member]));
  const sharded = new Set(assigned.flatMap(({ parameters }) => parameters));
  const rest = [...named.values()].filter(({ parameter }) => !sharded.has(parameter));
  const units = planBucketUnits(rest, settings, numRanks);
  const gathers = assigned.map(({ name, modules, parameters }) => {
    const members = parameters.map((parameter) => named.get(parameter) as NamedParameter);
    const first = units.length;
    for (const isTrainable of [true, false]) {
      const alike = members.filter(({ parameter }) => parameter.requiresGrad === isTrainable);
      units.push(...planFor(alike, UNLIMITED, settings, numRanks, 'part'));
    }
    return { name, modules, units: Array.from({ length: units.length - first }, (_unused, i) => first + i) };
  });
  return { units, gathers };
}

/** By default a unit is merged up to an eighth of the model: what is gathered at once stays small beside it. */
const MODEL_SHARE = 8;
/** Half a MiB of float32: beyond it a collective's fixed cost no longer counts. */
const MOST_MERGED = 131_072;

const UNLIMITED = { bytes: Infinity, firstBytes: Infinity };

/** The plan's gathers over the flat buffers that were made of it, in its order. */
export function scheduleOf({ gathers }: GatherPlan, flats: readonly FlatUnit[]): ScheduledUnit[] {
  return gathers.map(({ name, modules, units }) => ({
    unit: new GatherUnit(
      name,
      units.map((index) => flats[index] as FlatUnit),
    ),
    modules,
  }));
}

function defaultMergeThreshold(model: AnyModule): number {
  const numElements = model.parameters().reduce((sum, { size }) => sum + size, 0);
  return Math.min(MOST_MERGED, Math.floor(numElements / MODEL_SHARE));
}
