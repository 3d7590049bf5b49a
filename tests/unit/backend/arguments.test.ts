import type { Backend } from '../../../src/backend/backend';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failureOf, floats, results } from './mock-worlds';

type BadCall = (backend: Backend) => PromiseLike<unknown>;

const detached = (): Float32Array => {
  const buffer = new Float32Array(4);
  structuredClone(buffer, { transfer: [buffer.buffer] });
  return buffer;
};
const halves = new Uint16Array(4);

/** Called on rank 1 of 3. */
const BAD_CALLS: Readonly<Record<string, readonly [BadCall, RegExp]>> = {
  'a root outside the group': [(b) => b.broadcast(floats(1), 3), /src: expected a rank of this group, 0 to 2, got 3/],
  'a negative root': [(b) => b.reduce(floats(1), undefined, -1, 'Sum'), /dst: expected a rank.*got -1/],
  'a root that is no whole number': [(b) => b.broadcast(floats(1), 0.5), /src: expected a rank.*got 0\.5/],
  'a root that is text': [(b) => b.broadcast(floats(1), '1' as never), /src: expected a rank.*got "1"/],
  'a tag that is text': [(b) => b.send(floats(1), 0, '7' as never), /tag: expected a whole number from 0, got "7"/],
  'a plain array': [(b) => b.allReduce([1, 2] as never, 'Sum'), /data: expected a Float32Array.*got Array/],
  'a plain Uint16Array': [(b) => b.allReduce(halves as never, 'Sum'), /structuredClone and postMessage drop the class/],
  'no buffer': [(b) => b.allReduce(undefined as never, 'Sum'), /data: expected a Float32Array.*got undefined/],
  'a detached buffer': [(b) => b.allReduce(detached(), 'Sum'), /data: the buffer is detached/],
  'an unknown reduce op': [
    (b) => b.allReduce(floats(1), 'Mean' as never),
    /reduce op: expected one of Sum, .*got Mean/,
  ],
  'bit operations on floats': [(b) => b.allReduce(floats(1), 'BitAnd'), /BitAnd takes integers only, got float32/],
  'two dtypes in one call': [
    (b) => b.allGather(floats(1), new Int32Array(3)),
    /recv: expected float32 like the other buffer of this call, got int32/,
  ],
  'a recv of the wrong length': [
    (b) => b.allGather(floats(1, 2), floats(1, 2, 3)),
    /recv: expected 6 elements \(3 ranks x 2\), got 3/,
  ],
  'a send that does not divide': [
    (b) => b.reduceScatter(floats(1, 2, 3, 4), floats(1), 'Sum'),
    /send: expected 3 elements \(3 ranks x 1\), got 4/,
  ],
  'counts for another number of ranks': [
    (b) => b.allGather(floats(1), floats(1, 2), { counts: [1, 1] }),
    /counts: expected 3 whole numbers from 0, one for each rank, got \[1, 1\]/,
  ],
  'negative counts': [
    (b) => b.allGather(floats(1), floats(1), { counts: [1, 1, -1] }),
    /counts: expected 3 whole numbers/,
  ],
  'counts that do not fit this rank': [
    (b) => b.allGather(floats(1), floats(1, 2, 3), { counts: [1, 2, 0] }),
    /send: expected 2 elements \(counts\[1\]\), got 1/,
  ],
  'an all-to-all that does not divide': [
    (b) => b.allToAll(floats(1, 2), floats(1, 2, 3)),
    /send: 2 elements do not divide into 3 equal parts/,
  ],
  'counts beyond the buffer': [
    (b) => b.allToAll(floats(1, 2), floats(1, 2, 3), { sendCounts: [1, 1, 1] }),
    /sendCounts \[1, 1, 1\] need 3 elements, the buffer has 2/,
  ],
  'a buffer of the root on another rank': [
    (b) => b.reduce(floats(1), floats(1), 0, 'Sum'),
    /recv: only rank 0 \(dst\) passes this buffer/,
  ],
  'no buffer on the root': [(b) => b.gather(floats(1), undefined, 1), /recv: rank 1 is dst and must pass this buffer/],
  'sending to itself': [(b) => b.send(floats(1), 1), /dst: rank 1 is this rank itself; a rank cannot send to itself/],
  'receiving from itself': [(b) => b.recv(floats(1), 1), /src: rank 1 is this rank itself/],
  'a bad tag': [(b) => b.send(floats(1), 0, -1), /tag: expected a whole number from 0, got -1/],
  'a bad part of a batch': [
    (b) => b.batch([{ op: 'send', data: floats(1), peer: 5 }]),
    /ops\[0\]\.peer: expected a rank of this group, 0 to 2, got 5/,
  ],
  'an unknown op in a batch': [
    (b) => b.batch([{ op: 'put' as never, data: floats(1), peer: 0 }]),
    /ops\[0\]: expected \{ op: 'send' \| 'recv'/,
  ],
  'no list for a batch': [(b) => b.batch(undefined as never), /ops: expected a list/],
  'duplicate ranks in a split': [(b) => b.split([0, 1, 0]), /ranks \[0, 1, 0\]: rank 0 is listed twice/],
  'an unknown rank in a split': [(b) => b.split([0, 7]), /ranks \[0, 7\]: expected a rank of this group.*got 7/],
  'no ranks in a split': [(b) => b.split([]), /ranks: expected a list of at least one rank, got \[\]/],
  'a timeout of zero': [(b) => b.barrier({ timeoutMs: 0 }), /timeoutMs: expected a finite number.*above 0, got 0/],
  'no timeout at all': [(b) => b.barrier({ timeoutMs: Infinity }), /Every wait has a deadline/],
  'an unknown option': [(b) => b.barrier({ timeout: 5 } as never), /options: unknown key 'timeout'.*timeoutMs/],
  'options that are no object': [(b) => b.barrier(5 as never), /options: expected an object of timeoutMs, got 5/],
  'send and recv that overlap by chance': [
    (b) => {
      const memory = new Float32Array(6);
      return b.allGather(memory.subarray(0, 2), memory);
    },
    /send is not rank 1's part of recv, which begins at element 2/,
  ],
  'an all-to-all in place': [
    (b) => {
      const memory = new Float32Array(3);
      return b.allToAll(memory, memory);
    },
    /an all-to-all has no in-place form/,
  ],
  'parts of a batch that overlap': [
    (b) => {
      const memory = new Float32Array(3);
      return b.batch([
        { op: 'send', data: memory, peer: 0 },
        { op: 'recv', data: memory, peer: 0 },
      ]);
    },
    /ops\[1\]\.data shares memory with ops\[0\]\.data/,
  ],
};

describe('bad arguments', () => {
  test.each(Object.entries(BAD_CALLS))('%s: refused, and the message says why', async (_what, [call, message]) => {
    const world = MockBackend.createWorld(3);
    const error = await failureOf(call(world[1] as MockBackend));
    expect(error.name).toBe('InvalidArgumentError');
    expect(error.message).toMatch(message);
    expect(error.message).toMatch(/on rank 1 of group world: /);
    expect(error.context).toMatchObject({ rank: 1, group: 'world' });
  });

  test('consume no sequence number: the group goes on as if nothing had been called', async () => {
    const sums = await results(3, async (backend) => {
      if (backend.rank === 1) for (const [call] of Object.values(BAD_CALLS)) await failureOf(call(backend));
      const data = floats(backend.rank);
      await backend.allReduce(data, 'Sum');
      return data[0];
    });
    expect(sums).toEqual([3, 3, 3]);
  });
});

describe('options of a world', () => {
  test.each<[string, () => unknown, RegExp]>([
    ['no ranks', () => MockBackend.createWorld(0), /createWorld: expected a whole number of ranks from 1, got 0/],
    ['half a rank', () => MockBackend.createWorld(1.5), /got 1\.5/],
    ['text', () => MockBackend.createWorld('2' as never), /got "2"/],
    [
      'an unknown key',
      () => MockBackend.createWorld(2, { shedule: 'random' } as never),
      /createWorld: options: unknown key 'shedule'.*Known options: timeoutMs, checks, schedule/,
    ],
    [
      'a nested path',
      () => MockBackend.createWorld(2, { faults: [{ kind: 'explode', rank: 0, call: 0 } as never] }),
      /options\.faults\.0\.kind/,
    ],
    [
      'a fault of a rank that is not there',
      () => MockBackend.createWorld(2, { faults: [{ kind: 'hang', rank: 2, call: 0 }] }),
      /options\.faults\.0\.rank: expected a rank of the world, 0 to 1, got 2/,
    ],
    [
      'a delay of unknown length',
      () => MockBackend.createWorld(2, { faults: [{ kind: 'delay', rank: 0, call: 0 }] }),
      /options\.faults\.0\.delayMs: a delay, and only a delay, has delayMs/,
    ],
    ['a bad timeout', () => MockBackend.single({ timeoutMs: -1 }), /single: options\.timeoutMs/],
  ])('%s: refused, naming the path', (_what, make, message) => {
    expect(make).toThrow(
      expect.objectContaining({ name: 'InvalidArgumentError', message: expect.stringMatching(message) }),
    );
  });
});
