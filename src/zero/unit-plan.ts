import type { DType } from '../core/dtype';
import type { AnyModule } from '../nn/any-module';
import { planBuckets, reverseOrder, type BucketCapacity } from '../strategy/bucket-plan';
import type { Tensor } from '../tensor/tensor';
import type { NamedParameter, Residence } from './flat-unit';
import { planUnit, type UnitPlan } from './shard-plan';
import type { ZeroSettings } from './zero-options';

/** A unit before it has memory. */
export interface PlannedUnit {
  readonly plan: UnitPlan;
  /** By slot. */
  readonly members: readonly NamedParameter[];
  readonly residence: Residence;
}

const MIB = 1024 * 1024;
const FIRST_BUCKET_BYTES = MIB;

/**
 * The units of stages 0 to 2: buckets of trainable parameters, by reverse registration, see [Note: bucket order]. Frozen
 * parameters stay what they are, replicas. In stage 0 a unit has one part, which every rank owns.
 */
export function planBucketUnits(
  parameters: readonly NamedParameter[],
  settings: ZeroSettings,
  numRanks: number,
): PlannedUnit[] {
  const trainable = parameters.filter(({ parameter }) => parameter.requiresGrad);
  const bytes = settings.bucketCapMb * MIB;
  const capacity = { bytes, firstBytes: Math.min(bytes, FIRST_BUCKET_BYTES) };
  return planFor(trainable, capacity, settings, settings.stage === 0 ? 1 : numRanks, 'whole');
}

/** What a parameter is stored in: trainable float32 ones in the precision that was asked for, others as they are. */
export function storedDType({ dtype, requiresGrad }: Tensor, { precision }: ZeroSettings): DType {
  return requiresGrad && dtype === 'float32' ? precision : dtype;
}

/** One unit for each dtype at least, in the order of the reversed list. */
export function planFor(
  parameters: readonly NamedParameter[],
  capacity: BucketCapacity,
  settings: ZeroSettings,
  numParts: number,
  residence: Residence,
): PlannedUnit[] {
  const items = parameters.map(({ parameter }) => ({
    numElements: parameter.size,
    dtype: storedDType(parameter, settings),
  }));
  return planBuckets(items, reverseOrder(items.length), capacity).map((bucket) => ({
    plan: planUnit(bucket, numParts),
    members: bucket.slots.map(({ item }) => parameters[item] as NamedParameter),
    residence,
  }));
}

/** All parameters of `module` with their names. */
export function namedParametersOf(module: AnyModule): NamedParameter[] {
  return module.namedParameters().map(([name, parameter]) => ({ name, parameter }));
}
