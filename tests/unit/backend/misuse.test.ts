import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { DTYPES, isFloatDType } from '../../../src/core/dtype';
import { filled, untouched } from '../../helpers/fill';
import { failureOf, failures, floats, names, results } from './mock-worlds';

const HERE = /tests\/unit\/backend\/misuse\.test\.ts:\d+:\d+/.source;

describe('a buffer that is changed while in flight', () => {
  test('is an error that names op, sequence, rank and the first changed element', async () => {
    const errors = await failures(3, async (backend) => {
      await backend.barrier();
      const data = new Float32Array(1000);
      const work = backend.allReduce(data, 'Sum');
      if (backend.rank === 1) {
        data[700] = 1;
        data[20] = 1;
      }
      await work;
    });
    expect(names(errors)).toEqual([undefined, 'InvalidArgumentError', undefined]);
    expect(errors[1]?.message).toMatch(
      new RegExp(
        `^allReduce\\(float32\\[1000\\], Sum\\), collective 1 of group world, at ${HERE}, on rank 1: its buffer was changed while it was in flight; the first change is at element 20\\. Leave the buffers`,
      ),
    );
    expect(errors[1]?.context).toMatchObject({ rank: 1, group: 'world', op: 'allReduce', sequence: 1 });
  });

  test.each<[string, (b: MockBackend) => readonly [PromiseLike<unknown>, Float32Array], RegExp]>([
    [
      'sent by a broadcast',
      (b) => change(floats(1, 2), 1, (data) => b.broadcast(data, 0)),
      /its buffer was changed.*element 1/,
    ],
    [
      'sent by an all-gather',
      (b) => change(floats(1, 2), 0, (data) => b.allGather(data, new Float32Array(4))),
      /its buffer.*element 0/,
    ],
    [
      'received by an all-gather',
      (b) => change(new Float32Array(4), 3, (data) => b.allGather(floats(1, 2), data)),
      /the buffer that it receives into.*element 3/,
    ],
    [
      'reduced in place to a part',
      (b) => {
        const data = new Float32Array(4);
        return change(data, 2, () => b.reduceScatter(data, data.subarray(0, 2), 'Sum'));
      },
      /its buffer.*element 2/,
    ],
    ['sent', (b) => change(floats(1, 2), 1, (data) => b.send(data, 1)), /its buffer.*element 1/],
    [
      'received',
      (b) => change(floats(1, 2), 1, (data) => b.recv(data, 1)),
      /the buffer that it receives into.*element 1/,
    ],
  ])('is found: %s', async (what, launch, message) => {
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const [work] = launch(first);
    const partner =
      what === 'sent'
        ? second.recv(floats(0, 0), 0)
        : what === 'received'
          ? second.send(floats(5, 6), 0)
          : partnerOf(what, second);
    const error = await failureOf(work);
    expect(error.name).toBe('InvalidArgumentError');
    expect(error.message).toMatch(message);
    await partner; // what the others get is not touched
  });

  test('stays as the caller left it', async () => {
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const data = floats(1, 2);
    const work = first.allReduce(data, 'Sum');
    data.set([5, 6]);
    await second.allReduce(floats(1, 2), 'Sum');
    await failureOf(work);
    expect([...data]).toEqual([5, 6]);
  });

  test('does not disturb the others: they get the sum of what was there at the call', async () => {
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const [mine, theirs] = [floats(1, 2), floats(10, 20)];
    const work = first.allReduce(mine, 'Sum');
    mine.fill(0);
    await second.allReduce(theirs, 'Sum');
    await failureOf(work);
    expect([...theirs]).toEqual([11, 22]);
  });

  test("is not looked for with checks: 'order'", async () => {
    const sums = await results(
      2,
      async (backend) => {
        const data = floats(1);
        const work = backend.allReduce(data, 'Sum');
        if (backend.rank === 0) data[0] = 5;
        await work;
        return data[0];
      },
      { checks: 'order' },
    );
    expect(sums).toEqual([6, 6]); // nothing was copied, so the change took part
  });
});

/** Launch a call on `data`, then change one element while it waits. */
function change(
  data: Float32Array,
  index: number,
  launch: (data: Float32Array) => PromiseLike<unknown>,
): readonly [PromiseLike<unknown>, Float32Array] {
  const work = launch(data);
  data[index] = 77;
  return [work, data];
}

function partnerOf(what: string, second: MockBackend): PromiseLike<unknown> {
  if (what.includes('broadcast')) return second.broadcast(floats(0, 0), 0);
  if (what.includes('all-gather')) return second.allGather(floats(3, 4), new Float32Array(4));
  return second.reduceScatter(new Float32Array(4), new Float32Array(2), 'Sum');
}

describe('a result that is read too early', () => {
  test.each(DTYPES)('is poison in %s', async (dtype) => {
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const recv = untouched(dtype, 6);
    const work = first.allGather(filled(dtype, 3, 2, 0), recv);
    const early = 'toFloat32' in recv ? [...recv.toFloat32()] : Array.from(recv as Int8Array, Number);
    if (isFloatDType(dtype)) expect(early.every(Number.isNaN)).toBe(true);
    else expect(new Set(new Uint8Array(recv.buffer))).toEqual(new Set([0xdb]));
    await Promise.all([work, second.allGather(filled(dtype, 3, 2, 1), untouched(dtype, 6))]);
    expect(recv.subarray(0, 3)).toEqual(filled(dtype, 3, 2, 0));
    expect(recv.subarray(3)).toEqual(filled(dtype, 3, 2, 1));
  });

  test('is poison in place too, and nothing outside the buffer is touched', async () => {
    const memory = floats(1, 2, 3, 4);
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const work = first.allReduce(memory.subarray(1, 3), 'Sum');
    expect([...memory]).toEqual([1, NaN, NaN, 4]);
    await Promise.all([work, second.allReduce(floats(10, 20), 'Sum')]);
    expect([...memory]).toEqual([1, 12, 23, 4]);
  });

  test("is what was there before with checks: 'order'", async () => {
    const [first, second] = MockBackend.createWorld(2, { checks: 'order' }) as [MockBackend, MockBackend];
    const data = floats(1);
    const work = first.allReduce(data, 'Sum');
    expect([...data]).toEqual([1]);
    await Promise.all([work, second.allReduce(floats(1), 'Sum')]);
  });
});

describe('memory that is in use', () => {
  test('a buffer still in flight cannot be passed to another call', async () => {
    const [first] = MockBackend.createWorld(2) as [MockBackend];
    const data = floats(1, 2);
    void first.allReduce(data, 'Sum');
    const error = await failureOf(first.broadcast(data.subarray(1), 0));
    expect(error.name).toBe('InvalidArgumentError');
    expect(error.message).toMatch(
      /broadcast on rank 0 of group world: the buffer is still in use by allReduce\(float32\[2\], Sum\), collective 0 of group world.*of rank 0\. Await that call first/,
    );
  });

  test('two ranks cannot receive into the same memory', async () => {
    const [first, second] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const shared = floats(1);
    const work = first.allReduce(shared, 'Sum');
    const error = await failureOf(second.allReduce(shared, 'Sum'));
    expect(error.message).toMatch(
      /the buffer shares memory with that of allReduce.*of rank 0\. Ranks of a mock world live in one process: give each its own buffers/,
    );
    await second.allReduce(floats(2), 'Sum'); // refused before anything was sent
    await work;
    expect([...shared]).toEqual([3]);
  });

  test('calls may read the same memory, and neighbouring parts of one buffer are apart', async () => {
    const shared = Object.freeze({ input: floats(1, 2) });
    const gathered = await results(2, async (backend) => {
      const memory = new Float32Array(8);
      const works = [
        backend.allGather(shared.input, memory.subarray(0, 4)),
        backend.allGather(shared.input, memory.subarray(4)),
      ];
      await Promise.all(works);
      return [...memory];
    });
    expect(gathered).toEqual([0, 1].map(() => [1, 2, 1, 2, 1, 2, 1, 2]));
  });
});

describe('when a rank returns', () => {
  test('a Work that nobody awaited is an error with its source line', async () => {
    const errors = await failures(2, async (backend) => {
      void backend.allReduce(floats(1), 'Sum');
      const forgotten = backend.barrier();
      expect(forgotten.isAwaited).toBe(false);
    });
    expect(names(errors)).toEqual(['InvalidArgumentError', 'InvalidArgumentError']);
    expect(errors[0]?.message).toMatch(
      new RegExp(
        `^rank 0 returned, but nobody awaited its allReduce\\(float32\\[1\\], Sum\\), collective 0 of group world, at ${HERE} \\(and 1 more\\)\\. Await every Work`,
      ),
    );
  });

  test('so is one that was refused, unheard', async () => {
    const [error] = await failures(1, (backend) => void backend.broadcast(floats(1), 9));
    expect(error?.message).toMatch(
      /nobody awaited its broadcast, which was refused: broadcast on rank 0 of group world: src: expected a rank[^.]*[^.]\. Await every Work/,
    );
  });

  test('a call that is still in flight is an error, although somebody awaits it', async () => {
    const errors = await failures(2, async (backend) => {
      if (backend.rank === 0) {
        void backend.barrier().then(undefined, () => undefined);
        return;
      }
      await backend.sleep(10);
      await backend.barrier();
    });
    expect(names(errors)).toEqual(['InvalidArgumentError', 'PeerLostError']);
    expect(errors[0]?.message).toMatch(
      /rank 0 returned while its barrier\(\), collective 0 of group world.* is still in flight\. Await it/,
    );
  });

  test('a group that it left open is an error', async () => {
    const errors = await failures(3, async (backend) => {
      const group = await backend.split([0, 2]);
      if (backend.rank === 0) await group?.close();
    });
    expect(names(errors)).toEqual([undefined, undefined, 'InvalidArgumentError']);
    expect(errors[2]?.message).toMatch(/rank 2 returned and left group world\/0 open\. Close each group that you make/);
  });

  test('closing the parent closes the groups split from it', async () => {
    const errors = await failures(2, async (backend) => {
      const group = (await backend.split([0, 1])) as MockBackend;
      await group.split([1]);
      await backend.close();
      expect((await failureOf(group.barrier())).name).toBe('ClosedError');
    });
    expect(errors).toEqual([undefined, undefined]);
  });

  test("none of these is looked for with checks: 'order'", async () => {
    const errors = await failures(
      2,
      async (backend) => {
        void backend.barrier();
        await backend.split([0, 1]);
      },
      { checks: 'order' },
    );
    expect(errors).toEqual([undefined, undefined]);
  });

  test('the others learn of the misuse as of any other throw', async () => {
    const errors = await failures(2, async (backend) => {
      await backend.split([0, 1]);
      if (backend.rank === 1) await backend.barrier();
    });
    expect(names(errors)).toEqual(['InvalidArgumentError', 'PeerLostError']);
    expect(errors[1]?.message).toMatch(
      /rank 0 of group world was lost: it threw InvalidArgumentError: rank 0 returned and left group world\/0 open/,
    );
  });

  test('many awaited calls are forgotten again', async () => {
    const errors = await failures(1, async (backend) => {
      for (let call = 0; call < 2000; call++) await backend.barrier();
    });
    expect(errors).toEqual([undefined]);
  });
});

describe('in a batch', () => {
  test('a changed part fails the call of its owner when all parts have moved; the peers are served', async () => {
    const [a, b, c] = MockBackend.createWorld(3) as [MockBackend, MockBackend, MockBackend];
    const [toB, toC] = [floats(1), floats(2)];
    const batch = a.batch([
      { op: 'send', data: toB, peer: 1 },
      { op: 'send', data: toC, peer: 2 },
    ]);
    toB[0] = 9;
    const received = [floats(0), floats(0)] as const;
    await b.recv(received[0], 0);
    await c.recv(received[1], 0);
    expect((await failureOf(batch)).message).toMatch(/batch\(send\(.*on rank 0: its buffer was changed.*element 0/);
    expect(received.map(([value]) => value)).toEqual([1, 2]);
  });

  test('a mismatch leaves the buffers of both sides as they were', async () => {
    const [a, b] = MockBackend.createWorld(2) as [MockBackend, MockBackend];
    const [sent, into, other] = [floats(1), floats(5, 6), floats(7)];
    const send = failureOf(a.send(sent, 1));
    const batch = failureOf(
      b.batch([
        { op: 'recv', data: other, peer: 0, tag: 4 },
        { op: 'recv', data: into, peer: 0 },
      ]),
    );
    expect(names([await send, await batch])).toEqual(['CollectiveMismatchError', 'CollectiveMismatchError']);
    expect([...sent, ...into, ...other]).toEqual([1, 5, 6, 7]);
  });
});

test('a call that was awaited is forgotten while the rank goes on, and its buffers can be collected', async () => {
  const sent: WeakRef<Float32Array>[] = [];
  const worlds = MockBackend.createWorld(2);
  const send = (backend: MockBackend): Promise<number> =>
    backend.run(async () => {
      for (let i = 0; i < 50; i++) {
        const data = floats(100);
        sent.push(new WeakRef(data));
        await backend.allReduce(data, 'Sum');
      }
      await new Promise((resolve) => setTimeout(resolve, 5)); // a WeakRef holds what it was made of until its turn is over
      collectGarbage();
      return sent.filter((buffer) => buffer.deref() !== undefined).length;
    });
  for (const held of await Promise.all(worlds.map(send))) expect(held).toBeLessThan(10); // each rank's last, and strays
});

function collectGarbage(): void {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
}
