/** Announcements as a backend would make them, for the tests of this folder. */
import {
  checkAllReduce,
  checkAllToAll,
  checkBarrier,
  checkBroadcast,
  checkSplit,
} from '../../../../src/backend/check-collective';
import { checkBatch, checkPointToPoint } from '../../../../src/backend/check-point-to-point';
import type { AllToAllOptions, CallOptions, P2pOp } from '../../../../src/backend/backend';
import type { GrpcControlGroup } from '../../../../src/backend/grpc/control-group';
import type { HostBuffer } from '../../../../src/core/dtype';
import type { Work } from '../../../../src/core/work';
import { callerOf, type ControlRank } from '../../../helpers/control-planes';
import { failureOf } from '../mock-worlds';

export type Two = readonly [GrpcControlGroup, GrpcControlGroup];

export const rootsOf = (ranks: readonly ControlRank[]): GrpcControlGroup[] => ranks.map(({ root }) => root);

export const failuresOf = (works: readonly PromiseLike<unknown>[]): Promise<Awaited<ReturnType<typeof failureOf>>[]> =>
  Promise.all(works.map(failureOf));

/** Orders of delivery; undefined: link by link. */
export const SEEDS = [undefined, 1, 2, 3];

export const floats = (length: number): Float32Array => new Float32Array(length);

export const allReduce = (group: GrpcControlGroup, length = 1, options?: CallOptions): Work =>
  group.announce(checkAllReduce(callerOf(group), floats(length), 'Sum', options));

export const broadcast = (group: GrpcControlGroup, src: number, options?: CallOptions): Work =>
  group.announce(checkBroadcast(callerOf(group), floats(1), src, options));

export const barrier = (group: GrpcControlGroup, options?: CallOptions): Work =>
  group.announce(checkBarrier(callerOf(group), options));

export const allToAll = (group: GrpcControlGroup, length: number, options?: AllToAllOptions): Work =>
  group.announce(checkAllToAll(callerOf(group), floats(length), floats(length), options));

export const split = (group: GrpcControlGroup, ranks: readonly number[]): Work =>
  group.announce(checkSplit(callerOf(group), ranks));

export const send = (group: GrpcControlGroup, data: HostBuffer, dst: number, tag = 0, options?: CallOptions): Work =>
  group.announceMessages('send', checkPointToPoint(callerOf(group), 'send', data, dst, tag, options));

export const recv = (group: GrpcControlGroup, data: HostBuffer, src: number, tag = 0, options?: CallOptions): Work =>
  group.announceMessages('recv', checkPointToPoint(callerOf(group), 'recv', data, src, tag, options));

export const batch = (group: GrpcControlGroup, ops: readonly P2pOp[]): Work =>
  group.announceMessages('batch', checkBatch(callerOf(group), ops));
