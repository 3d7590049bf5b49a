import type { AnyModule } from '../nn/any-module';
import { deferParameters } from '../nn/initial-values';
import type { FlatUnit } from './flat-unit';

/**
 * Build a module whose parameters take no memory yet, see [Note: deferred parameters]; those that the factory makes of
 * tensors of its own do. Each unit makes the values of its parameters when it is made, and keeps its part of them, so that
 * a rank holds its parts and one unit at most.
 */
export function buildDeferred<M>(factory: () => M): M {
  return deferParameters(factory);
}

/** Give values to the deferred parameters that are in no unit. */
export function materializeRest(model: AnyModule, units: readonly FlatUnit[]): void {
  const inUnits = new Set(units.flatMap(({ members }) => members.map(({ parameter }) => parameter)));
  for (const parameter of model.parameters()) if (!inUnits.has(parameter)) parameter.materialize();
}
