import type { LockstepError } from '../../../src/core/errors';
import { failures, floats, names, outcomes } from './mock-worlds';

/** Take the memory of `buffer` away, as postMessage with a transfer list does. */
const detach = ({ buffer }: Float32Array): unknown => structuredClone(buffer, { transfer: [buffer as ArrayBuffer] });

/** Node has these, the type library of this build has not. */
const Resizable = ArrayBuffer as unknown as new (
  byteLength: number,
  options: { readonly maxByteLength: number },
) => ArrayBuffer & { resize(byteLength: number): void };

const MODES = (['all', 'order'] as const).flatMap((checks) =>
  (['fifo', 'random'] as const).map((schedule) => ({ checks, schedule })),
);

/** True where what a waiting rank contributes has been copied, so that the others can get their result. */
const isCopied = ({ checks, schedule }: (typeof MODES)[number]): boolean => checks === 'all' || schedule === 'random';

describe.each(MODES)('memory that is taken away while in flight, with %j', (mode) => {
  test('from a reduction is an error of its owner; the others get the sum, or learn whose it was', async () => {
    const settled = await outcomes(
      3,
      async (backend) => {
        const data = floats(1 + backend.rank);
        const work = backend.allReduce(data, 'Sum');
        if (backend.rank === 0) detach(data);
        await work;
        return data[0];
      },
      mode,
    );
    const [owner, ...others] = settled;
    const error = (owner as PromiseRejectedResult).reason as LockstepError;
    expect(error.name).toBe('InvalidArgumentError');
    expect(error.message).toMatch(
      /^allReduce\(float32\[1\], Sum\), collective 0 of group world, at .*, on rank 0: its buffer was detached while it was in flight: its memory was transferred/,
    );
    for (const other of others) {
      if (isCopied(mode)) expect(other).toEqual({ status: 'fulfilled', value: 6 });
      else {
        expect(other).toMatchObject({ reason: { name: 'PeerLostError', context: { ranks: [0] }, cause: error } });
        const { message } = (other as PromiseRejectedResult).reason as Error;
        expect(message).toMatch(/^rank 0 of group world cannot take part: allReduce/);
      }
    }
  });

  test('from what a call receives into is an error of its owner alone', async () => {
    const errors = await failures(
      2,
      async (backend) => {
        const gathered = new Float32Array(2);
        const work = backend.allGather(floats(backend.rank), gathered);
        if (backend.rank === 0) detach(gathered);
        await work;
        expect([...gathered]).toEqual([0, 1]);
      },
      mode,
    );
    expect(names(errors)).toEqual(['InvalidArgumentError', undefined]);
    expect(errors[0]?.message).toMatch(/the buffer that it receives into was detached/);
  });

  test('from a posted receive is an error of the receiver; the sender is done', async () => {
    const errors = await failures(
      2,
      async (backend) => {
        const data = floats(1, 2);
        const work = backend.rank === 0 ? backend.recv(data, 1) : backend.send(data, 0);
        if (backend.rank === 0) detach(data);
        await work;
      },
      mode,
    );
    expect(names(errors)).toEqual(['InvalidArgumentError', undefined]);
    expect(errors[0]?.message).toMatch(/recv\(float32\[2\].*the buffer that it receives into was detached/);
  });

  test('from a posted send is an error of the sender; the receiver gets the data, or learns why not', async () => {
    const settled = await outcomes(
      2,
      async (backend) => {
        const data = floats(1 + backend.rank);
        if (backend.rank === 1) {
          await backend.barrier(); // the send is in flight
          await backend.recv(data, 0);
          return data[0];
        }
        const work = backend.send(data, 1);
        detach(data);
        await backend.barrier();
        return work;
      },
      mode,
    );
    expect(settled[0]).toMatchObject({ reason: { name: 'InvalidArgumentError' } });
    expect(settled[1]).toMatchObject(
      mode.checks === 'all' ? { value: 1 } : { reason: { name: 'PeerLostError', context: { ranks: [0] } } },
    );
  });

  test('or shrunk is an error of its owner too', async () => {
    const errors = await failures(
      2,
      async (backend) => {
        const memory = new Resizable(8, { maxByteLength: 8 });
        const data = new Float32Array(memory);
        const work = backend.broadcast(data, 1);
        if (backend.rank === 0) memory.resize(4);
        await work;
      },
      mode,
    );
    expect(names(errors)).toEqual(['InvalidArgumentError', undefined]);
    expect(errors[0]?.message).toMatch(/the buffer that it receives into was resized while it was in flight\./);
  });

  test('while a fault holds the call up ends the group, and the next call of the others says so', async () => {
    const errors = await failures(
      2,
      async (backend) => {
        const data = floats(1);
        const work = backend.allReduce(data, 'Sum');
        if (backend.rank === 0) detach(data);
        await work;
      },
      { ...mode, clock: 'virtual', faults: [{ kind: 'delay', rank: 0, call: 0, delayMs: 10 }] },
    );
    expect(names(errors)).toEqual(['InvalidArgumentError', 'PeerLostError']);
  });

  test('from a call that fails for another reason does not keep the others from hearing of it', async () => {
    const errors = await failures(
      3,
      async (backend) => {
        await backend.barrier();
        if (backend.rank === 2) throw new Error('boom');
        const data = new Float32Array(4);
        const work = backend.broadcast(data, 2);
        if (backend.rank === 0) detach(data);
        await work;
      },
      mode,
    );
    expect(names(errors)).toEqual(['PeerLostError', 'PeerLostError', 'Error']);
  });
});
