/** Pairs of calls that do not match: one rank of three makes the odd one, in a group of their own. */
import type { Backend } from '../../../src/backend/backend';

export const MISMATCH_SIZE = 3;
export const ODD_RANK = 1;

type Calls = (group: Backend) => readonly PromiseLike<unknown>[];

export interface MismatchedCalls {
  readonly usual: Calls;
  readonly odd: Calls;
  /** What the message must say that the others called, and the odd rank. */
  readonly says: readonly [RegExp, RegExp];
}

const floats = (length: number): Float32Array => new Float32Array(length);

export const mismatchedCalls: Readonly<Record<string, MismatchedCalls>> = {
  'another collective': {
    usual: (group) => [group.allReduce(floats(4), 'Sum')],
    odd: (group) => [group.allGather(floats(4), floats(12))],
    says: [/allReduce/, /allGather/],
  },
  'a barrier': {
    usual: (group) => [group.allReduce(floats(4), 'Sum')],
    odd: (group) => [group.barrier()],
    says: [/allReduce/, /barrier/],
  },
  'another reduce op': {
    usual: (group) => [group.allReduce(floats(4), 'Sum')],
    odd: (group) => [group.allReduce(floats(4), 'Max')],
    says: [/allReduce.*Sum/, /allReduce.*Max/],
  },
  'another reduce op in reduceScatter': {
    usual: (group) => [group.reduceScatter(floats(6), floats(2), 'Average')],
    odd: (group) => [group.reduceScatter(floats(6), floats(2), 'Sum')],
    says: [/reduceScatter.*Average/, /reduceScatter.*Sum/],
  },
  'another dtype of the same byte length': {
    usual: (group) => [group.allReduce(floats(4), 'Sum')],
    odd: (group) => [group.allReduce(new Int32Array(4), 'Sum')],
    says: [/allReduce.*float32/, /allReduce.*int32/],
  },
  'another count': {
    usual: (group) => [group.allReduce(floats(4), 'Sum')],
    odd: (group) => [group.allReduce(floats(6), 'Sum')],
    says: [/allReduce.*4/, /allReduce.*6/],
  },
  'no elements': {
    usual: (group) => [group.allReduce(floats(4), 'Sum')],
    odd: (group) => [group.allReduce(floats(0), 'Sum')],
    says: [/allReduce.*4/, /allReduce.*0/],
  },
  'another count in allGather': {
    usual: (group) => [group.allGather(floats(2), floats(6))],
    odd: (group) => [group.allGather(floats(3), floats(9))],
    says: [/allGather.*2/, /allGather.*3/],
  },
  'other counts in allGather': {
    usual: (group) => [group.allGather(floats(group.rank === 2 ? 2 : 1), floats(4), { counts: [1, 1, 2] })],
    odd: (group) => [group.allGather(floats(1), floats(4), { counts: [2, 1, 1] })],
    says: [/allGather.*1, 1, 2/, /allGather.*2, 1, 1/],
  },
  'another root of a broadcast': {
    usual: (group) => [group.broadcast(floats(4), 0)],
    odd: (group) => [group.broadcast(floats(4), 2)],
    says: [/broadcast.*0/, /broadcast.*2/],
  },
  'another count of a broadcast': {
    usual: (group) => [group.broadcast(floats(4), 0)],
    odd: (group) => [group.broadcast(floats(6), 0)],
    says: [/broadcast.*4/, /broadcast.*6/],
  },
  'another root of a reduce': {
    usual: (group) => [group.reduce(floats(4), group.rank === 0 ? floats(4) : undefined, 0, 'Sum')],
    odd: (group) => [group.reduce(floats(4), floats(4), ODD_RANK, 'Sum')],
    says: [/reduce.*0/, /reduce.*1/],
  },
  'another root of a gather': {
    usual: (group) => [group.gather(floats(1), group.rank === 0 ? floats(3) : undefined, 0)],
    odd: (group) => [group.gather(floats(1), undefined, 2)],
    says: [/gather.*0/, /gather.*2/],
  },
  'another root of a scatter': {
    usual: (group) => [group.scatter(group.rank === 0 ? floats(3) : undefined, floats(1), 0)],
    odd: (group) => [group.scatter(undefined, floats(1), 2)],
    says: [/scatter.*0/, /scatter.*2/],
  },
  'counts of an allToAll that are not those of the peers': {
    usual: (group) => [group.allToAll(floats(3), floats(3), { sendCounts: [1, 1, 1], recvCounts: [1, 1, 1] })],
    odd: (group) => [group.allToAll(floats(3), floats(3), { sendCounts: [0, 1, 2], recvCounts: [1, 1, 1] })],
    says: [/allToAll.*1, 1, 1/, /allToAll.*0, 1, 2/],
  },
  'other ranks of a split': {
    usual: (group) => [group.split([0, 1, 2])],
    odd: (group) => [group.split([0, 1])],
    says: [/split.*0, 1, 2/, /split.*0, 1/],
  },
  'the ranks of a split in another order': {
    usual: (group) => [group.split([0, 1, 2])],
    odd: (group) => [group.split([1, 0, 2])],
    says: [/split.*0, 1, 2/, /split.*1, 0, 2/],
  },
  'the same collectives in another order': {
    usual: (group) => [group.allReduce(floats(4), 'Sum'), group.broadcast(floats(4), 0)],
    odd: (group) => [group.broadcast(floats(4), 0), group.allReduce(floats(4), 'Sum')],
    says: [/allReduce/, /broadcast/],
  },
  'the same collective of two sizes in another order': {
    usual: (group) => [group.allReduce(floats(4), 'Sum'), group.allReduce(floats(6), 'Sum')],
    odd: (group) => [group.allReduce(floats(6), 'Sum'), group.allReduce(floats(4), 'Sum')],
    says: [/allReduce.*4/, /allReduce.*6/],
  },
};
