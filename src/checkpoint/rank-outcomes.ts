/**
 * What the ranks of a group have each done, made known to all of them.
 *
 * [Note: one outcome] Some of the work of a checkpoint is done by each rank for itself, and any of it can fail on one rank
 * only: a full disk, a damaged chunk. A rank that failed takes part in the next collective all the same and says so, and
 * then every rank rejects with the same message. So ranks stay in step, and nobody takes for good what another gave up.
 */
import type { CallOptions } from '../backend/backend';
import { fromWire, toWire, type WireError } from '../core/error-wire';
import { asError, CheckpointError, InvalidArgumentError, isLockstepError, UnsupportedError } from '../core/errors';
import type { ProcessGroup } from '../process-group/process-group';

/** Of one rank. */
export type RankOutcome<T> =
  { readonly value: T; readonly error?: undefined } | { readonly value?: undefined; readonly error: WireError };

/** Run `work`; its failure is an outcome too. */
export async function outcomeOf<T>(work: () => T | Promise<T>): Promise<RankOutcome<T>> {
  try {
    return { value: await work() };
  } catch (thrown) {
    return { error: toWire(asError(thrown)) };
  }
}

/** Every rank's outcome, on every rank, by rank. Rejects only if the group itself fails. */
export async function exchangeOutcomes<T>(
  outcome: RankOutcome<T>,
  group: ProcessGroup,
  options?: CallOptions,
): Promise<RankOutcome<T>[]> {
  return group.size === 1 ? [outcome] : group.allGatherObjects(outcome, options);
}

/**
 * Run `work` on every rank, and wait for all of them.
 * @returns what it gave on each rank, by rank
 * @throws the error of the first rank on which it failed, on every rank, naming that rank
 */
export async function onAllRanks<T>(group: ProcessGroup, op: string, work: () => T | Promise<T>): Promise<T[]> {
  return valuesOf(await exchangeOutcomes(await outcomeOf(work), group), group, op);
}

/** @throws the error of the first rank that failed, naming that rank */
export function valuesOf<T>(outcomes: readonly RankOutcome<T>[], group: ProcessGroup, op: string): T[] {
  return outcomes.map((outcome, rank) => {
    if (outcome.error !== undefined) throw errorOfRank(outcome.error, rank, group, op);
    return outcome.value;
  });
}

/** What rank `rank` failed with, as every rank throws it. */
export function errorOfRank(wire: WireError, rank: number, group: ProcessGroup, op: string): Error {
  const cause = fromWire(wire);
  const where = group.size === 1 ? '' : `rank ${rank} of ${group.name}: `;
  const opening = `${op}: `;
  const text = wire.message.startsWith(opening) ? wire.message.slice(opening.length) : wire.message;
  const message = `${opening}${where}${text}`;
  const context = { rank: group.rank, group: group.name, op, ranks: [rank], cause };
  if (isLockstepError(cause, 'LOCKSTEP_INVALID_ARGUMENT')) return new InvalidArgumentError(message, context);
  if (isLockstepError(cause, 'LOCKSTEP_UNSUPPORTED')) return new UnsupportedError(message, context);
  return new CheckpointError(message, context);
}
