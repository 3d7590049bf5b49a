import { CollectiveTimeoutError } from '../../core/errors';
import type { GroupRanks } from '../../core/group-ranks';
import type { FlightRecord } from './addon';
import type { NcclCall } from './nccl-call';
import type { OpenDevice } from './open-device';

/**
 * All ranks have announced the call, and NCCL has not finished it by its deadline.
 * @param silentRanks those that do not answer on the control plane
 */
export function notMovedError(
  call: NcclCall,
  { addon, handle, name }: OpenDevice,
  ranks: GroupRanks,
  silentRanks: readonly number[],
): Error {
  const { op, sequence, group, rank = 0 } = call.info;
  const isSomebodySilent = silentRanks.length > 0;
  const seen = describeRecords(addon.flightRecorder(handle), call.title);
  const message = [
    `${call.title}, on ${ranks.name(rank)}, ${name}: not finished within ${call.timeoutMs} ms. All ranks have arrived, but NCCL has not finished.`,
    seen,
    ...(isSomebodySilent ? [describeSilence(ranks.namesAtStart(silentRanks), silentRanks.length)] : []),
    'Ranks that use several groups, or send and receive, in different orders wait for each other on their devices: launch in one order everywhere, and exchange by one batch. If a rank is only slow, pass a larger timeoutMs. The group cannot be used any more; build another.',
  ].join(' ');
  return new CollectiveTimeoutError(message, {
    op,
    sequence,
    group,
    rank,
    ...(isSomebodySilent && ranks.blame(silentRanks)),
  });
}

function describeSilence(names: string, count: number): string {
  const verb = count === 1 ? 'does' : 'do';
  return `${names} came to it, but ${verb} not answer any more: stopped, cut off, or computing without yielding.`;
}

/** What the device is at, as its flight recorder has it. */
export function describeRecords(records: readonly FlightRecord[], label: string): string {
  const own = records.findLast((record) => record.label === label);
  const [first] = records.filter(isUnfinished);
  const parts = [
    own === undefined ? 'The device has not been given the call yet.' : `On this rank it is ${describeRecord(own)}.`,
    first === undefined || first === own ? '' : `The device is still at ${first.label}, ${describeRecord(first)}.`,
  ];
  return parts.filter((part) => part !== '').join(' ');
}

function describeRecord({ communicator, sequence, state, error }: FlightRecord): string {
  const why = error === undefined ? '' : `: ${error}`;
  return `operation ${sequence} of communicator ${communicator}, in state '${state}'${why}`;
}

function isUnfinished({ state }: FlightRecord): boolean {
  return state !== 'done' && state !== 'failed';
}
