/** What is small in a training state: scheduler, scaler, the place in the data, random generators. Kept in the index. */
import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import type { Generator, GeneratorState } from '../core/generator';
import { defaultGenerator } from '../core/random';
import { DistributedSampler } from '../data/distributed-sampler';
import { checkedJson } from '../strategy/json-value';
import type { JsonValue } from '../strategy/state-parts';
import type { CheckpointIndex, Values } from './index-file';
import { randomStateFor } from './random-state';

/** Anything that can save and load its state as plain data: schedulers, scalers, samplers. */
export interface Stateful {
  stateDict(): unknown;
  loadStateDict(state: never): unknown;
}

export interface SmallState {
  readonly scheduler?: Stateful | undefined;
  readonly scaler?: Stateful | undefined;
  readonly sampler?: Stateful | undefined;
  readonly generator?: Generator | readonly Generator[] | undefined;
}

/** One object's change to its saved state, and the way back. */
export interface StateChange {
  apply(): unknown;
  undo(): unknown;
}

const generatorState = z.strictObject({ seed: z.int().min(0), position: z.int().min(0) });
const rankSchema = z.strictObject({
  random: generatorState,
  generators: z.array(generatorState).optional(),
  sampler: z.strictObject({ state: z.custom<JsonValue>(), worldSize: z.int().nullable() }).optional(),
});

/** What is the same on all ranks. */
export async function sharedValues({ scheduler, scaler }: SmallState): Promise<Values> {
  return {
    ...(scheduler === undefined ? {} : { scheduler: checkedJson(await scheduler.stateDict(), 'scheduler') }),
    ...(scaler === undefined ? {} : { scaler: checkedJson(await scaler.stateDict(), 'scaler') }),
  };
}

/** This rank's own. */
export async function ownValues({ sampler, generator }: SmallState): Promise<Values> {
  const own = { random: { ...defaultGenerator().getState() } };
  const generators = listGenerators(generator)?.map((one) => ({ ...one.getState() }));
  return {
    ...own,
    ...(generators === undefined ? {} : { generators }),
    ...(sampler === undefined
      ? {}
      : { sampler: { state: checkedJson(await sampler.stateDict(), 'sampler'), worldSize: worldSizeOf(sampler) } }),
  };
}

/**
 * The changes that bring `state` to what was saved, in the order in which they are to be made; none is made yet.
 * @throws InvalidArgumentError for an object of which the checkpoint has no state
 */
export async function plannedChanges(state: SmallState, index: CheckpointIndex, rank: number): Promise<StateChange[]> {
  const ranks = index.ranks.map((values) => rankSchema.parse(values));
  const changes: StateChange[] = [];
  for (const name of ['scheduler', 'scaler'] as const) {
    const object = state[name];
    if (object !== undefined) changes.push(await changeOf(object, index.values[name] ?? refuseMissing(name)));
  }
  const { sampler } = state;
  if (sampler !== undefined) {
    const own = (ranks[rank] ?? ranks[0])?.sampler ?? refuseMissing('sampler');
    const isResized = sampler instanceof DistributedSampler && sampler.worldSize !== own.worldSize;
    changes.push(await changeOf(sampler, isResized ? rescaled(sampler, ranks[0]?.sampler ?? own) : own.state));
  }
  listGenerators(state.generator)?.forEach((generator, i) => {
    const saved = ranks.map(({ generators }) => generators?.[i] ?? refuseMissing(`generator ${i}`));
    changes.push(changeOfGenerator(generator, randomStateFor(saved, rank)));
  });
  const random = ranks.map((values) => values.random);
  return [...changes, changeOfGenerator(defaultGenerator(), randomStateFor(random, rank))];
}

async function changeOf(object: Stateful, saved: JsonValue): Promise<StateChange> {
  const before = structuredClone(await object.stateDict()); // a failing load may change what it has given in place
  return {
    apply: () => object.loadStateDict(saved as never),
    undo: () => object.loadStateDict(before as never),
  };
}

function changeOfGenerator(generator: Generator, saved: GeneratorState): StateChange {
  const before = generator.getState();
  return { apply: () => generator.setState(saved), undo: () => generator.setState(before) };
}

/**
 * The place in the data for another number of ranks. The order of an epoch does not depend on their number, and the ranks
 * go through it side by side, so rank 0 tells how far all had come. Where that does not divide, each rank goes back to the
 * last place where it does: up to worldSize - 1 samples are seen twice, and none is left out.
 */
function rescaled(sampler: DistributedSampler, saved: { state: JsonValue; worldSize: number | null }): JsonValue {
  const { epoch, position } = saved.state as { readonly epoch: number; readonly position: number };
  const done = position * (saved.worldSize ?? sampler.worldSize);
  return { epoch, position: Math.min(sampler.length, Math.floor(done / sampler.worldSize)) };
}

function worldSizeOf(sampler: Stateful): number | null {
  return sampler instanceof DistributedSampler ? sampler.worldSize : null;
}

function listGenerators(generator: SmallState['generator']): readonly Generator[] | undefined {
  if (generator === undefined) return undefined;
  return Array.isArray(generator) ? (generator as readonly Generator[]) : [generator as Generator];
}

function refuseMissing(name: string): never {
  throw new InvalidArgumentError(
    `the checkpoint has no state of the ${name}. Leave it out of the state to load, or save it together with the others.`,
  );
}
