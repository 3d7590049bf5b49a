/**
 * Collectives of JavaScript values. They travel as v8.serialize writes them; sizes go first, then bytes.
 *
 * [Note: values that cannot be cloned] A rank whose value cannot be written must not leave the others waiting, so it
 * takes part all the same and sends the reason in place of the value. Every rank then rejects with the same
 * InvalidArgumentError, which names that rank, and the group lives on.
 */
import { constants } from 'node:buffer';
import { deserialize, serialize } from 'node:v8';
import type { AllToAllOptions, CallOptions } from '../backend/backend';
import { Deadline, checkTimeout } from '../core/deadline';
import { InvalidArgumentError, asError } from '../core/errors';
import { withoutFullStop } from '../core/full-stop';
import type { Work } from '../core/work';
import type { GroupChannel } from './group-channel';
import { contextOf, damagedOnTheWay, describePlace, type CallPlace } from './call-place';
import { checkRoot } from './member-list';

/** A value on its way: its bytes, or the text that says why it has none. */
interface Parcel {
  readonly isValue: boolean;
  readonly bytes: Uint8Array;
}

/** What is known of a parcel before it arrives. */
interface Label {
  readonly isValue: boolean;
  readonly length: number;
}

/** Numbers that a label takes in a header. */
const LABEL_SIZE = 2;

/** No Buffer is longer. */
const { MAX_LENGTH } = constants;

export async function broadcastObject(
  channel: GroupChannel,
  value: unknown,
  src: number,
  options: CallOptions,
): Promise<unknown> {
  const place = channel.place('broadcastObject');
  checkRoot(src, 'src', place);
  const remaining = deadlineOf(options);
  const mine = channel.rank === src ? pack(value) : undefined;
  const [label] = await broadcastLabels(channel, place, headerOf(mine && [mine], 1), src, remaining());
  const bytes = mine?.bytes ?? new Uint8Array((label as Label).length);
  await broadcastBytes(channel, bytes, src, remaining());
  return unpack({ isValue: (label as Label).isValue, bytes }, src, place);
}

export async function allGatherObjects(
  channel: GroupChannel,
  value: unknown,
  options: CallOptions,
): Promise<unknown[]> {
  const place = channel.place('allGatherObjects');
  const remaining = deadlineOf(options);
  const mine = pack(value);
  const labels = await gatherLabels(channel, place, mine, remaining());
  const parcels = await gatherParcels(channel, mine, labels, remaining());
  return parcels.map((parcel, rank) => unpack(parcel, rank, place));
}

export async function gatherObjects(
  channel: GroupChannel,
  value: unknown,
  dst: number,
  options: CallOptions,
): Promise<unknown[] | undefined> {
  const place = channel.place('gatherObjects');
  checkRoot(dst, 'dst', place);
  const remaining = deadlineOf(options);
  const mine = pack(value);
  const labels = await gatherLabels(channel, place, mine, remaining());
  const isComplete = labels.every((label) => label.isValue);
  // Where one is missing, everybody has to hear why.
  const parcels = isComplete
    ? await sendParcels(channel, mine, labels, dst, remaining())
    : await gatherParcels(channel, mine, labels, remaining());
  return parcels?.map((parcel, rank) => unpack(parcel, rank, place));
}

export async function scatterObjects(
  channel: GroupChannel,
  values: readonly unknown[] | undefined,
  src: number,
  options: CallOptions,
): Promise<unknown> {
  const place = channel.place('scatterObjects');
  checkRoot(src, 'src', place);
  const remaining = deadlineOf(options);
  const mine = channel.rank === src ? packEach(values, place) : undefined;
  const labels = await broadcastLabels(channel, place, headerOf(mine, channel.size), src, remaining());
  const failed = labels.findIndex((label) => !label.isValue);
  if (failed >= 0) {
    const reason = mine?.[failed]?.bytes ?? new Uint8Array((labels[failed] as Label).length);
    await broadcastBytes(channel, reason, src, remaining());
    return unpack({ isValue: false, bytes: reason }, src, place);
  }
  return unpack({ isValue: true, bytes: await deal(channel, mine, labels, src, remaining()) }, src, place);
}

/** The parcels of `src`, one for each rank. */
async function deal(
  channel: GroupChannel,
  mine: readonly Parcel[] | undefined,
  labels: readonly Label[],
  src: number,
  options: CallOptions,
): Promise<Uint8Array> {
  const bytes = new Uint8Array((labels[channel.rank] as Label).length);
  const send = mine === undefined ? new Uint8Array(0) : Buffer.concat(mine.map((parcel) => parcel.bytes));
  const sendCounts = labels.map((label) => (channel.rank === src ? label.length : 0));
  const recvCounts = labels.map((_label, rank) => (rank === src ? bytes.length : 0));
  await exchangeBytes(channel, send, bytes, { ...options, sendCounts, recvCounts });
  return bytes;
}

/** All parcels on rank `dst`, in rank order; undefined elsewhere. */
async function sendParcels(
  channel: GroupChannel,
  mine: Parcel,
  labels: readonly Label[],
  dst: number,
  options: CallOptions,
): Promise<readonly Parcel[] | undefined> {
  const isDestination = channel.rank === dst;
  const bytes = new Uint8Array(isDestination ? totalLength(labels) : 0);
  const sendCounts = labels.map((_label, rank) => (rank === dst ? mine.bytes.length : 0));
  const recvCounts = labels.map((label) => (isDestination ? label.length : 0));
  await exchangeBytes(channel, mine.bytes, bytes, { ...options, sendCounts, recvCounts });
  return isDestination ? cutParcels(bytes, labels) : undefined;
}

/** All parcels on every rank, in rank order. */
async function gatherParcels(
  channel: GroupChannel,
  mine: Parcel,
  labels: readonly Label[],
  options: CallOptions,
): Promise<readonly Parcel[]> {
  const bytes = new Uint8Array(totalLength(labels));
  const counts = labels.map((label) => label.length);
  const work = channel.backend.allGather(mine.bytes, bytes, { ...options, counts });
  await channel.watch({ op: 'allGather', dtype: 'uint8', counts }, work);
  return cutParcels(bytes, labels);
}

async function gatherLabels(
  channel: GroupChannel,
  place: CallPlace,
  mine: Parcel,
  options: CallOptions,
): Promise<readonly Label[]> {
  const header = new Float64Array(channel.size * LABEL_SIZE);
  const send = writeLabels([mine]);
  await channel.watch(
    { op: 'allGather', dtype: 'float64', counts: LABEL_SIZE },
    channel.backend.allGather(send, header, options),
  );
  const labels = readLabels(header, (index) => damagedOnTheWay(place, index));
  if (labels[channel.rank]?.length !== mine.bytes.length) throw damagedOnTheWay(place, channel.rank);
  return labels;
}

/** The labels of rank `src`, whose header this is on that rank; elsewhere it is room for them. */
async function broadcastLabels(
  channel: GroupChannel,
  place: CallPlace,
  header: Float64Array,
  src: number,
  options: CallOptions,
): Promise<readonly Label[]> {
  await channel.watch(
    { op: 'broadcast', dtype: 'float64', counts: header.length, root: src },
    channel.backend.broadcast(header, src, options),
  );
  return readLabels(header, () => damagedOnTheWay(place, src));
}

function broadcastBytes(channel: GroupChannel, bytes: Uint8Array, src: number, options: CallOptions): Work {
  const call = { op: 'broadcast', dtype: 'uint8', counts: bytes.length, root: src } as const;
  return channel.watch(call, channel.backend.broadcast(bytes, src, options));
}

function exchangeBytes(channel: GroupChannel, send: Uint8Array, recv: Uint8Array, options: AllToAllOptions): Work {
  const call = { op: 'allToAll', dtype: 'uint8', sendCounts: options.sendCounts } as const;
  return channel.watch(call, channel.backend.allToAll(send, recv, options));
}

/** The labels of these parcels, or room for `count` of another rank. */
function headerOf(parcels: readonly Parcel[] | undefined, count: number): Float64Array {
  return parcels === undefined ? new Float64Array(count * LABEL_SIZE) : writeLabels(parcels);
}

/** float64 holds any length exactly, and every backend has it. */
function writeLabels(parcels: readonly Parcel[]): Float64Array {
  return Float64Array.from(parcels.flatMap((parcel) => [parcel.isValue ? 1 : 0, parcel.bytes.length]));
}

/** @param damage the error for a label that nobody can have written */
function readLabels(header: Float64Array, damage: (index: number) => Error): readonly Label[] {
  return Array.from({ length: header.length / LABEL_SIZE }, (_unused, index) => {
    const [kind, length] = header.subarray(index * LABEL_SIZE) as unknown as [number, number];
    if ((kind !== 0 && kind !== 1) || !Number.isSafeInteger(length) || length < 0 || length > MAX_LENGTH) {
      throw damage(index);
    }
    return { isValue: kind === 1, length };
  });
}

function totalLength(labels: readonly Label[]): number {
  return labels.reduce((total, label) => total + label.length, 0);
}

function cutParcels(bytes: Uint8Array, labels: readonly Label[]): readonly Parcel[] {
  let start = 0;
  return labels.map(({ isValue, length }) => {
    const parcel = { isValue, bytes: bytes.slice(start, start + length) };
    start += length;
    return parcel;
  });
}

function pack(value: unknown): Parcel {
  try {
    return { isValue: true, bytes: serialize(value) };
  } catch (thrown) {
    return refusal(`cannot be cloned: ${withoutFullStop(asError(thrown).message)}`);
  }
}

/** One parcel a rank. A list that cannot be dealt out gives refusals, so that the other ranks hear of it. */
function packEach(values: readonly unknown[] | undefined, place: CallPlace): readonly Parcel[] {
  if (Array.isArray(values) && values.length === place.size) return values.map(pack);
  const given = Array.isArray(values) ? `a list of ${values.length}` : `a value of type ${typeof values}`;
  const parcel = refusal(`is ${given}, expected a list with one entry for each of the ${place.size} ranks`);
  return Array.from({ length: place.size }, () => parcel);
}

function refusal(reason: string): Parcel {
  return { isValue: false, bytes: Buffer.from(reason) };
}

/**
 * @throws InvalidArgumentError if it is no value, see [Note: values that cannot be cloned]
 * @throws PeerLostError if its bytes cannot be read
 */
function unpack(parcel: Parcel, from: number, place: CallPlace): unknown {
  if (parcel.isValue) {
    try {
      return deserialize(parcel.bytes);
    } catch (thrown) {
      throw damagedOnTheWay(place, from, asError(thrown));
    }
  }
  throw new InvalidArgumentError(
    `${describePlace(place)}: what ${place.members.name(from)} passed ${Buffer.from(parcel.bytes).toString()}. Values travel by v8.serialize: pass plain data, without functions, symbols or promises.`,
    { ...contextOf(place), ...place.members.blame([from]) },
  );
}

/** What remains of the caller's time, asked for anew before each of the collectives that the call is made of. */
function deadlineOf(options: CallOptions): () => CallOptions {
  const { timeoutMs } = options;
  if (timeoutMs === undefined) return () => options;
  const deadline = new Deadline(checkTimeout(timeoutMs, timeoutMs));
  return () => ({ ...options, timeoutMs: Math.max(1, deadline.remainingMs) });
}
