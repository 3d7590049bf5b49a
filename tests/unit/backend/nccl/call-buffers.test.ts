import { expectNoMemory, failureOf, onAll, turns, withNcclWorld, type NcclRank } from '../../../helpers/nccl-worlds';

test('host and device buffers may be mixed, in one call and between ranks', async () => {
  await withNcclWorld(2, async (ranks) => {
    const results = await onAll(ranks, async (backend, rank) => {
      const { device } = backend;
      if (device === undefined) throw new Error('there is no device');
      const own = device.allocate('int32', 2);
      await device.upload(Int32Array.of(rank, 10 + rank), own);
      const gathered = new Int32Array(4);
      await backend.allGather(rank === 0 ? own : Int32Array.of(1, 11), gathered);
      own.dispose();
      return [...gathered];
    });
    expect(results).toEqual([
      [0, 10, 1, 11],
      [0, 10, 1, 11],
    ]);
    expectNoMemory(ranks);
  });
});

test('views of one device buffer are in place where they are this rank’s part, else refused', async () => {
  await withNcclWorld(2, async (ranks) => {
    const results = await onAll(ranks, async (backend, rank) => {
      const whole = ranks[rank]?.backend.device.allocate('float32', 4);
      if (whole === undefined) throw new Error('there is no buffer');
      const [own, other] = [whole.view(2 * rank, 2), whole.view(2 * (1 - rank), 2)];
      await backend.device?.upload(Float32Array.of(rank, rank), own);
      const refused = await failureOf(backend.allGather(other, whole));
      await backend.allGather(own, whole);
      const result = new Float32Array(4);
      await backend.device?.download(whole, result);
      for (const buffer of [whole, own, other]) buffer.dispose();
      return [refused.message, ...result];
    });
    for (const [message, ...values] of results) {
      expect(message).toMatch(/share memory, but send is not rank \d's part of recv/);
      expect(values).toEqual([0, 0, 1, 1]);
    }
    expectNoMemory(ranks);
  });
});

test('in place, a rank alone keeps what it has: there is nothing to move, and nothing to copy down', async () => {
  await withNcclWorld(1, async (ranks) => {
    await onAll(ranks, async (backend) => {
      const data = Float32Array.of(3, 4);
      await backend.gather(data, data, 0);
      await backend.scatter(data, data, 0);
      await backend.allGather(data, data);
      await backend.reduceScatter(data, data, 'Average');
      expect([...data]).toEqual([3, 4]);
    });
  });
});

test('disposing of a buffer while its call is in flight is legal', async () => {
  for (const checks of ['beside', 'before'] as const) {
    process.env['LOCKSTEP_NCCL_CHECKS'] = checks;
    await withNcclWorld(2, async (ranks, network) => {
      const results = await onAll(ranks, async (backend, rank) => {
        const buffer = ranks[rank]?.backend.device.allocate('float32', 1);
        if (buffer === undefined) throw new Error('there is no buffer');
        await backend.device?.upload(Float32Array.of(rank + 1), buffer);
        const recv = new Float32Array(2);
        const work = backend.allGather(buffer, recv);
        buffer.dispose();
        await work;
        return [...recv];
      });
      expect(results).toEqual([
        [1, 2],
        [1, 2],
      ]);
      expect(network.misuses).toEqual([]);
      expectNoMemory(ranks);
    });
    delete process.env['LOCKSTEP_NCCL_CHECKS'];
  }
});

test('disposed buffers are refused, and nothing is sent', async () => {
  await withNcclWorld(2, async (ranks) => {
    const [{ backend }] = ranks as [NcclRank];
    const buffer = backend.device.allocate('float32', 2);
    buffer.dispose();
    const error = await failureOf(backend.allReduce(buffer, 'Sum'));
    expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { op: 'allReduce', rank: 0 } });
    expect(error.message).toMatch(/data: the device buffer has been disposed of/);
    const sums = await onAll(ranks, async (each) => {
      const data = Int32Array.of(1);
      await each.allReduce(data, 'Sum');
      return data[0];
    });
    expect(sums).toEqual([2, 2]);
  });
});

test('a call that fails leaves host memory as it was', async () => {
  await withNcclWorld(2, async (ranks) => {
    const buffers = ranks.map(() => Float32Array.of(1, 2));
    const errors = await onAll(ranks, (backend, rank) =>
      failureOf(backend.allReduce(buffers[rank] as Float32Array, rank === 0 ? 'Sum' : 'Max')),
    );
    for (const error of errors) expect(error.name).toBe('CollectiveMismatchError');
    await turns(5);
    expect(buffers.map((buffer) => [...buffer])).toEqual([
      [1, 2],
      [1, 2],
    ]);
    expectNoMemory(ranks);
  });
});

test('an average of integers, and bit operations, are refused before anything is sent', async () => {
  await withNcclWorld(1, async ([only]) => {
    const { backend } = only as NcclRank;
    for (const op of ['Average', 'BitOr'] as const) {
      expect(await failureOf(backend.allReduce(Int32Array.of(1), op))).toMatchObject({ name: 'UnsupportedError' });
    }
    const work = backend.barrier();
    expect(work.info.sequence).toBe(0);
    await work;
  });
});

/** ArrayBuffer's options are newer than the language that this is checked as. */
const ResizableBuffer = ArrayBuffer as unknown as new (
  byteLength: number,
  options: { readonly maxByteLength: number },
) => ArrayBuffer;

test.each([
  ['shared', () => new SharedArrayBuffer(8)],
  ['resizable', () => new ResizableBuffer(8, { maxByteLength: 16 })],
])('memory that is %s is used as any other', async (_name, make) => {
  await withNcclWorld(2, async (ranks) => {
    const results = await onAll(ranks, async (backend, rank) => {
      const data = new Float32Array(make());
      data.fill(rank + 1);
      await backend.allReduce(data, 'Sum');
      const { device } = ranks[rank]?.backend as NcclRank['backend'];
      const buffer = device.allocate('float32', 2);
      await device.upload(data, buffer);
      data.fill(0);
      await device.download(buffer, data);
      buffer.dispose();
      return [...data];
    });
    expect(results).toEqual([
      [3, 3],
      [3, 3],
    ]);
  });
});

test('a buffer whose memory is transferred away while its call is in flight fails the call, which says so', async () => {
  await withNcclWorld(1, async ([only]) => {
    const data = new Float32Array(2);
    const work = (only as NcclRank).backend.allReduce(data, 'Sum');
    structuredClone(data.buffer, { transfer: [data.buffer] });
    const error = await failureOf(work);
    expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { op: 'allReduce', sequence: 0, rank: 0 } });
    expect(error.message).toMatch(/a buffer was detached while the call was in flight/);
  });
});
