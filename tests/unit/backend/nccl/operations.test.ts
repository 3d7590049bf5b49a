import type { Block, NcclOperation } from '../../../../src/backend/nccl/addon';
import { collectiveOperations, messageOperations, type Operand } from '../../../../src/backend/nccl/operations';
import type { CollectiveCall } from '../../../../src/backend/call';

const block = (): Block => ({}) as Block;
const at = (of: Block, byteOffset: number): Operand => ({ block: of, byteOffset });

/** Two separate buffers, from byte 8 of their blocks. */
const [sendBlock, recvBlock] = [block(), block()];
const apart = { send: at(sendBlock, 8), recv: at(recvBlock, 8) };

const operations = (call: CollectiveCall, rank = 1, size = 3, operands = apart): NcclOperation[] =>
  collectiveOperations(call, { rank, size }, operands);

const float = { dtype: 'float32' } as const;

test('an operation of NCCL is used as it is', () => {
  expect(operations({ op: 'allReduce', reduceOp: 'Sum', counts: 5, ...float })).toEqual([
    { kind: 'allReduce', count: 5, dtype: 'float32', ...apart, op: 'sum' },
  ]);
  expect(operations({ op: 'allGather', counts: 5, ...float })).toEqual([
    { kind: 'allGather', count: 5, dtype: 'float32', ...apart },
  ]);
  expect(operations({ op: 'reduceScatter', reduceOp: 'Average', counts: 5, ...float })).toEqual([
    { kind: 'reduceScatter', count: 5, dtype: 'float32', ...apart, op: 'average' },
  ]);
});

test('a rank that does not own the result of a reduce, or the data of a broadcast, needs no second buffer', () => {
  const reduce: CollectiveCall = { op: 'reduce', reduceOp: 'Max', counts: 2, root: 0, ...float };
  const { send } = apart;
  expect(collectiveOperations(reduce, { rank: 1, size: 2 }, { send, recv: undefined })).toEqual([
    { kind: 'reduce', count: 2, dtype: 'float32', send, recv: send, op: 'max', root: 0 },
  ]);
  const broadcast: CollectiveCall = { op: 'broadcast', counts: 2, root: 0, ...float };
  for (const [rank, operands] of [
    { send, recv: undefined },
    { send: undefined, recv: send },
  ].entries()) {
    expect(collectiveOperations(broadcast, { rank, size: 2 }, operands)).toEqual([
      { kind: 'broadcast', count: 2, dtype: 'float32', send, recv: send, root: 0 },
    ]);
  }
});

test('unequal parts are broadcast by, or reduced to, their owners; the same on all ranks', () => {
  const counts = [2, 0, 3];
  expect(operations({ op: 'allGather', counts, ...float }, 2)).toEqual([
    { kind: 'broadcast', count: 2, dtype: 'float32', send: at(recvBlock, 8), recv: at(recvBlock, 8), root: 0 },
    { kind: 'broadcast', count: 3, dtype: 'float32', send: apart.send, recv: at(recvBlock, 16), root: 2 },
  ]);
  expect(operations({ op: 'reduceScatter', reduceOp: 'Sum', counts, ...float }, 2)).toEqual([
    { kind: 'reduce', count: 2, dtype: 'float32', send: at(sendBlock, 8), recv: at(sendBlock, 8), op: 'sum', root: 0 },
    { kind: 'reduce', count: 3, dtype: 'float32', send: at(sendBlock, 16), recv: apart.recv, op: 'sum', root: 2 },
  ]);
});

test('an all-to-all sends each part, also its own, and leaves out those without elements', () => {
  const call: CollectiveCall = { op: 'allToAll', sendCounts: [1, 2, 0], recvCounts: [0, 2, 4], ...float };
  expect(operations(call)).toEqual([
    { kind: 'send', count: 1, dtype: 'float32', send: at(sendBlock, 8), peer: 0 },
    { kind: 'send', count: 2, dtype: 'float32', send: at(sendBlock, 12), peer: 1 },
    { kind: 'recv', count: 2, dtype: 'float32', recv: at(recvBlock, 8), peer: 1 },
    { kind: 'recv', count: 4, dtype: 'float32', recv: at(recvBlock, 16), peer: 2 },
  ]);
});

test('gather and scatter are sends and receives between the root and each rank', () => {
  const gather: CollectiveCall = { op: 'gather', counts: 2, root: 1, ...float };
  expect(operations(gather, 0)).toEqual([{ kind: 'send', count: 2, dtype: 'float32', send: apart.send, peer: 1 }]);
  expect(operations(gather, 1)).toEqual([
    { kind: 'send', count: 2, dtype: 'float32', send: apart.send, peer: 1 },
    ...[0, 1, 2].map((peer) => ({ kind: 'recv', count: 2, dtype: 'float32', recv: at(recvBlock, 8 + 8 * peer), peer })),
  ]);
  const scatter: CollectiveCall = { op: 'scatter', counts: 2, root: 1, ...float };
  expect(operations(scatter, 0)).toEqual([{ kind: 'recv', count: 2, dtype: 'float32', recv: apart.recv, peer: 1 }]);
  expect(operations(scatter, 1).map(({ kind, ...rest }) => [kind, 'peer' in rest ? rest.peer : -1])).toEqual([
    ['send', 0],
    ['send', 1],
    ['send', 2],
    ['recv', 1],
  ]);
});

test('in place, nothing is sent from a part to itself', () => {
  const gather: CollectiveCall = { op: 'gather', counts: 2, root: 1, ...float };
  const operands = { send: at(recvBlock, 16), recv: at(recvBlock, 8) };
  expect(operations(gather, 1, 3, operands).map((each) => [each.kind, 'peer' in each ? each.peer : -1])).toEqual([
    ['recv', 0],
    ['recv', 2],
  ]);
});

test('without elements there is nothing to do, whatever the operation', () => {
  const none = { send: undefined, recv: undefined };
  const calls: CollectiveCall[] = [
    { op: 'barrier' },
    { op: 'split', ranks: [0, 1] },
    { op: 'allReduce', reduceOp: 'Sum', counts: 0, ...float },
    { op: 'broadcast', counts: 0, root: 0, ...float },
    { op: 'reduce', reduceOp: 'Sum', counts: 0, root: 0, ...float },
    { op: 'allGather', counts: [0, 0], ...float },
    { op: 'reduceScatter', reduceOp: 'Sum', counts: 0, ...float },
    { op: 'gather', counts: 0, root: 0, ...float },
    { op: 'scatter', counts: 0, root: 0, ...float },
    { op: 'allToAll', sendCounts: [0, 0], recvCounts: [0, 0], ...float },
  ];
  for (const call of calls) expect(collectiveOperations(call, { rank: 0, size: 2 }, none)).toEqual([]);
});

test('an average of one is a sum, which keeps the bits of a NaN', () => {
  const [only] = operations({ op: 'allReduce', reduceOp: 'Average', counts: 1, ...float }, 0, 1);
  expect(only).toMatchObject({ kind: 'allReduce', op: 'sum' });
});

test('messages keep the order of issue; empty ones are not sent', () => {
  const call = { dtype: 'int8', tag: 7 } as const;
  expect(
    messageOperations([
      { call: { ...call, op: 'recv', count: 3, peer: 2 }, place: apart.recv },
      { call: { ...call, op: 'send', count: 0, peer: 2 }, place: undefined },
      { call: { ...call, op: 'send', count: 3, peer: 2 }, place: apart.send },
    ]),
  ).toEqual([
    { kind: 'recv', count: 3, dtype: 'int8', recv: apart.recv, peer: 2 },
    { kind: 'send', count: 3, dtype: 'int8', send: apart.send, peer: 2 },
  ]);
});
