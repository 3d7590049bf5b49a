/** Bytes of every rank for every rank, beside the collectives: it takes no sequence number. */
import { Deadline, checkTimeout } from '../../core/deadline';
import type { HostBuffer } from '../../core/dtype';
import type { PointToPointCall } from '../call';
import type { GrpcGroup } from './grpc-group';

/** Receivers must know lengths, so these travel first. @throws what a collective of the group would */
export async function exchangeBytes(group: GrpcGroup, bytes: Uint8Array, timeoutMs: number): Promise<Uint8Array[]> {
  const deadline = new Deadline(checkTimeout(timeoutMs, timeoutMs));
  const own = bytes.slice();
  const ranks = Array.from({ length: group.size }, (_unused, rank) => rank);
  const lengths = ranks.map(() => new Float64Array(1));
  await exchange(group, Float64Array.of(own.byteLength), lengths, deadline);
  const all = lengths.map((length) => new Uint8Array(length[0] as number));
  await exchange(group, own, all, deadline);
  all[group.rank] = own;
  return all;
}

/** Fill `received` but for this rank's own. */
async function exchange(
  group: GrpcGroup,
  own: Float64Array | Uint8Array,
  received: readonly (Float64Array | Uint8Array)[],
  deadline: Deadline,
): Promise<void> {
  const refusal = group.refusal('exchange');
  if (refusal !== undefined) throw refusal;
  const dtype = own instanceof Uint8Array ? 'uint8' : 'float64';
  const part = (op: 'send' | 'recv', peer: number, data: HostBuffer): { call: PointToPointCall; data: HostBuffer } => ({
    call: { op, dtype, count: data.length, peer, tag: 0 },
    data,
  });
  const parts = received.flatMap((data, peer) =>
    peer === group.rank ? [] : [part('send', peer, own), part('recv', peer, data)],
  );
  await group.startPointToPoint('exchange', { parts, timeoutMs: Math.max(1, Math.ceil(deadline.remainingMs)) }).work;
}
