import { bytesSent } from '../../../src/backend/ledger';
import type { CollectiveCall } from '../../../src/backend/call';
import { floats, results } from './mock-worlds';

const SIZES = [1, 2, 3, 4, 7];
const PART = 12;
const BYTES = 4 * PART;

function totals(call: (size: number) => CollectiveCall): number[] {
  return SIZES.map((size) => {
    const perRank = Array.from({ length: size }, (_unused, rank) => bytesSent(call(size), rank, size));
    return perRank.reduce((sum, bytes) => sum + bytes, 0);
  });
}

/** All ranks together, by world size, in units of one rank's buffer. */
const multiples = (of: (size: number) => number): number[] => SIZES.map((size) => of(size) * BYTES);

test.each<[string, (size: number) => CollectiveCall, (size: number) => number]>([
  ['allReduce', () => ({ op: 'allReduce', dtype: 'float32', counts: PART, reduceOp: 'Sum' }), (n) => 2 * (n - 1)],
  ['allGather', () => ({ op: 'allGather', dtype: 'float32', counts: PART }), (n) => n * (n - 1)],
  [
    'reduceScatter',
    () => ({ op: 'reduceScatter', dtype: 'float32', counts: PART, reduceOp: 'Sum' }),
    (n) => n * (n - 1),
  ],
  ['broadcast', (n) => ({ op: 'broadcast', dtype: 'float32', counts: PART, root: n - 1 }), (n) => n - 1],
  ['reduce', () => ({ op: 'reduce', dtype: 'float32', counts: PART, reduceOp: 'Sum', root: 0 }), (n) => n - 1],
  ['gather', () => ({ op: 'gather', dtype: 'float32', counts: PART, root: 0 }), (n) => n - 1],
  ['scatter', () => ({ op: 'scatter', dtype: 'float32', counts: PART, root: 0 }), (n) => n - 1],
  ['barrier', () => ({ op: 'barrier' }), () => 0],
])('all ranks of a %s together send what an optimal algorithm has to', (_op, call, expected) => {
  totals(call).forEach((total, index) => expect(total).toBeCloseTo(multiples(expected)[index] as number, 6));
});

test('unequal parts count as what each rank owns', () => {
  const gather: CollectiveCall = { op: 'allGather', dtype: 'int8', counts: [5, 0, 2] };
  expect([0, 1, 2].map((rank) => bytesSent(gather, rank, 3))).toEqual([10, 0, 4]);
  const scatter: CollectiveCall = { op: 'reduceScatter', dtype: 'int8', counts: [5, 0, 2], reduceOp: 'Max' };
  expect([0, 1, 2].map((rank) => bytesSent(scatter, rank, 3))).toEqual([2, 7, 5]);
});

test('a backend counts its own calls and bytes, by op, and starts anew after a reset', async () => {
  const ledgers = await results(3, async (backend) => {
    for (let round = 0; round < 3; round++) await backend.allReduce(floats(1, 2), 'Sum');
    await backend.allToAll(new Int8Array(4), new Int8Array(4), {
      sendCounts: backend.rank === 0 ? [1, 1, 2] : [1, 1, 1],
      recvCounts: backend.rank === 2 ? [2, 1, 1] : [1, 1, 1],
    });
    if (backend.rank === 0) await backend.batch([{ op: 'send', data: floats(1), peer: 1 }]);
    if (backend.rank === 1) await backend.recv(floats(0), 0);
    const before = backend.ledger;
    backend.resetLedger();
    return { before, after: backend.ledger };
  });
  const [first, second] = ledgers.map(({ before }) => before);
  expect(first?.allReduce.calls).toBe(3);
  expect(first?.allReduce.bytes).toBe((3 * 2 * 2 * 8) / 3); // exact: whole numbers are added up, and divided once
  expect(first?.allToAll).toEqual({ calls: 1, bytes: 3 });
  expect(first?.batch).toEqual({ calls: 1, bytes: 4 });
  expect(second?.recv).toEqual({ calls: 1, bytes: 0 });
  expect(first?.broadcast).toEqual({ calls: 0, bytes: 0 });
  expect(ledgers[0]?.after.allReduce).toEqual({ calls: 0, bytes: 0 });
});

test('a refused call is not counted', async () => {
  const [calls] = await results(1, async (backend) => {
    await backend.broadcast(floats(1), 4).catch(() => undefined);
    return backend.ledger.broadcast.calls;
  });
  expect(calls).toBe(0);
});
