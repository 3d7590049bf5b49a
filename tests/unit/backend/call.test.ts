import {
  describeCollective,
  describePointToPoint,
  findUnequalPair,
  isSameCollective,
  type CollectiveCall,
} from '../../../src/backend/call';

const allReduce: CollectiveCall = { op: 'allReduce', dtype: 'float32', counts: 4, reduceOp: 'Sum' };

describe('the fingerprint of a collective', () => {
  test.each<[string, Partial<CollectiveCall>]>([
    ['op', { op: 'reduce' }],
    ['dtype', { dtype: 'float64' }],
    ['reduce op', { reduceOp: 'Max' }],
    ['count', { counts: 5 }],
    ['unequal counts', { counts: [4, 4] }],
    ['root', { root: 0 }],
    ['ranks of a split', { ranks: [0] }],
  ])('differs in the %s', (_what, change) => {
    expect(isSameCollective(allReduce, { ...allReduce })).toBe(true);
    expect(isSameCollective(allReduce, { ...allReduce, ...change })).toBe(false);
  });

  test('compares lists of counts by value', () => {
    const call: CollectiveCall = { op: 'allGather', dtype: 'int8', counts: [1, 2] };
    expect(isSameCollective(call, { ...call, counts: [1, 2] })).toBe(true);
    expect(isSameCollective(call, { ...call, counts: [2, 1] })).toBe(false);
    expect(isSameCollective(call, { ...call, counts: [1, 2, 0] })).toBe(false);
  });

  test('of an all-to-all matches pair by pair, as far as ranks have called', () => {
    const call = (sendCounts: number[], recvCounts: number[]): CollectiveCall => ({
      op: 'allToAll',
      dtype: 'int8',
      sendCounts,
      recvCounts,
    });
    expect(findUnequalPair([call([1, 2], [1, 3]), call([3, 4], [2, 4])])).toBeUndefined();
    expect(findUnequalPair([call([1, 2], [1, 3]), undefined])).toBeUndefined();
    expect(findUnequalPair([call([1, 2], [1, 3]), call([3, 4], [5, 4])])).toEqual({ sender: 0, receiver: 1 });
  });
});

test('every call has a readable rendering', () => {
  const calls: CollectiveCall[] = [
    allReduce,
    { op: 'broadcast', dtype: 'int8', counts: 3, root: 1 },
    { op: 'allGather', dtype: 'float32', counts: 2 },
    { op: 'allGather', dtype: 'float32', counts: [2, 0, 1] },
    { op: 'reduceScatter', dtype: 'float16', counts: 2, reduceOp: 'Average' },
    { op: 'reduce', dtype: 'int64', counts: 2, reduceOp: 'Max', root: 2 },
    { op: 'gather', dtype: 'uint8', counts: 2, root: 0 },
    { op: 'scatter', dtype: 'uint8', counts: 2, root: 0 },
    { op: 'allToAll', dtype: 'int32', sendCounts: [1, 2], recvCounts: [1, 0] },
    { op: 'barrier' },
    { op: 'split', ranks: [2, 0] },
  ];
  expect(calls.map(describeCollective)).toEqual([
    'allReduce(float32[4], Sum)',
    'broadcast(int8[3], from rank 1)',
    'allGather(float32[2] per rank)',
    'allGather(float32, counts [2, 0, 1])',
    'reduceScatter(float16[2] per rank, Average)',
    'reduce(int64[2], to rank 2, Max)',
    'gather(uint8[2] per rank, to rank 0)',
    'scatter(uint8[2] per rank, from rank 0)',
    'allToAll(int32, sending [1, 2], receiving [1, 0])',
    'barrier()',
    'split([2, 0])',
  ]);
  expect(describePointToPoint({ op: 'send', dtype: 'int8', count: 3, peer: 2, tag: 7 })).toBe(
    'send(int8[3], to rank 2, tag 7)',
  );
  expect(describePointToPoint({ op: 'recv', dtype: 'int8', count: 3, peer: 2, tag: 0 })).toBe(
    'recv(int8[3], from rank 2, tag 0)',
  );
});
