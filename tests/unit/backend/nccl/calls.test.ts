import { isLockstepError } from '../../../../src/core/errors';
import { nativeFailure } from '../../../helpers/fake-gpu';
import { expectNoMemory, failureOf, onAll, turns, withNcclWorld, type NcclRank } from '../../../helpers/nccl-worlds';

test('a tag that the announcement cannot carry is refused, and the group lives on', async () => {
  await withNcclWorld(2, async (ranks) => {
    const refusals = await onAll(ranks, (backend) => {
      const data = new Float32Array(1);
      const peer = 1 - backend.rank;
      return failureOf(backend.rank === 0 ? backend.send(data, peer, 2 ** 32) : backend.recv(data, peer, 2 ** 32));
    });
    for (const refusal of refusals) {
      expect(refusal).toMatchObject({ name: 'UnsupportedError', message: expect.stringContaining('tags up to') });
    }
    await onAll(ranks, (backend) => backend.barrier());
  });
});

describe('failures', () => {
  test('that one rank has no memory for a call ends it on all ranks, and says how much is in use', async () => {
    await withNcclWorld(3, async (ranks) => {
      ranks[1]?.gpu.failNext(
        'allocate',
        nativeFailure('OUT_OF_MEMORY', 'no memory for 8 bytes', { call: 'cuMemAlloc' }),
      );
      const errors = await onAll(ranks, (backend) => failureOf(backend.allReduce(new Float64Array(1), 'Sum')));
      errors.forEach((error, rank) => {
        expect(error).toMatchObject({ name: 'NativeError', scope: 'group' });
        expect(error).toMatchObject({ context: { op: 'allReduce', sequence: 0, group: 'world', rank } });
        expect(error.message).toMatch(
          /allReduce\(float64\[1\], Sum\), sequence 0 of group world, on rank 1, on cuda:1: cuMemAlloc: no memory for 8 bytes\. Of 8192 bytes, 1024 are free; this process has taken 4096, of which 2048 are in use\. Dispose/,
        );
      });
      const later = await onAll(ranks, (backend) => failureOf(backend.barrier()));
      for (const error of later) {
        expect(error.name).toBe('ClosedError');
        expect(isLockstepError(error.cause, 'LOCKSTEP_NATIVE')).toBe(true);
      }
      await turns(5);
      expectNoMemory(ranks);
    });
  });

  test('a failure of NCCL on one rank ends the call on all, with what NCCL said; the communicator is aborted', async () => {
    await withNcclWorld(2, async (ranks) => {
      const failure = nativeFailure('NCCL', 'unhandled system error', {
        call: 'ncclAllReduce',
        result: 2,
        detail: 'Error while creating shared memory segment',
      });
      ranks[0]?.gpu.failNext('collective', failure);
      const errors = await onAll(ranks, (backend) => failureOf(backend.allReduce(new Float32Array(1), 'Sum')));
      for (const error of errors) {
        expect(error.name).toBe('NativeError');
        expect(error.message).toMatch(
          /on rank 0.*ncclAllReduce: unhandled system error\. NCCL says: Error while creating shared memory segment\..*\/dev\/shm/,
        );
      }
      await turns(2);
      expect(ranks.map(({ gpu }) => gpu.aborts)).toEqual([[['world']], [['world']]]);
    });
  });

  test('where NCCL says that another rank is gone, the control plane is given time to name it', async () => {
    const failure = nativeFailure('NCCL', 'remote process exited', { call: 'ncclAllReduce', result: 6 });
    for (const isLost of [true, false]) {
      await withNcclWorld(2, async (ranks) => {
        const [first, second] = ranks as [NcclRank, NcclRank];
        first.gpu.failNext('collective', failure);
        const call = failureOf(first.backend.allReduce(new Float32Array(1), 'Sum'));
        await turns(5);
        if (isLost) second.mesh.destroy(new Error('killed'));
        const error = await call;
        expect(error.name).toBe(isLost ? 'PeerLostError' : 'NativeError');
        if (!isLost)
          expect(error.message).toMatch(/remote process exited.*Another rank's process or network connection is gone/);
      });
    }
  });

  test('a lost device is a failure of the process', async () => {
    await withNcclWorld(1, async ([only]) => {
      const { backend, gpu } = only as NcclRank;
      gpu.failNext(
        'upload',
        nativeFailure('CUDA', 'an illegal address', { call: 'cuMemcpyHtoDAsync', isDeviceLost: true }),
      );
      const error = await failureOf(backend.allReduce(new Float32Array(1), 'Sum'));
      expect(error).toMatchObject({ name: 'NativeError', scope: 'process' });
      expect(error.message).toMatch(/start the process again/);
    });
  });

  test('a failed copy to the host fails the call', async () => {
    await withNcclWorld(1, async ([only]) => {
      const { backend, gpu } = only as NcclRank;
      gpu.failNext('download', nativeFailure('CUDA', 'unknown error', { call: 'cuMemcpyDtoHAsync' }));
      expect(await failureOf(backend.allReduce(new Float32Array(1), 'Sum'))).toMatchObject({ name: 'NativeError' });
      expectNoMemory([only as NcclRank]);
    });
  });

  test('what all ranks have come to and NCCL does not finish ends at the deadline, with the flight recorder’s view', async () => {
    await withNcclWorld(2, async (ranks, network) => {
      network.isStuck = true;
      const start = performance.now();
      const errors = await onAll(ranks, (backend) =>
        failureOf(backend.allReduce(new Float32Array(3), 'Sum', { timeoutMs: 100 })),
      );
      expect(performance.now() - start).toBeGreaterThan(95);
      for (const error of errors) {
        expect(error).toMatchObject({ name: 'CollectiveTimeoutError', context: { op: 'allReduce', sequence: 0 } });
        expect(error.message).toMatch(
          /not finished within 100 ms\. All ranks have arrived, but NCCL has not finished\. On this rank it is operation 0 of communicator world, in state 'launched'\./,
        );
      }
      expectNoMemory(ranks);
    });
  });

  test('a lost peer ends all its groups, and their communicators are aborted together', async () => {
    await withNcclWorld(3, async (ranks) => {
      const children = await onAll(ranks, (backend, rank) =>
        (backend as NcclRank['backend']).split(rank < 2 ? [0, 1] : [0, 1]),
      );
      const works = [ranks[0]?.backend.barrier(), children[0]?.barrier()] as PromiseLike<void>[];
      ranks[1]?.mesh.destroy(new Error('killed'));
      for (const work of works) expect(await failureOf(work)).toMatchObject({ name: 'PeerLostError' });
      await turns(2);
      expect(ranks[0]?.gpu.aborts).toEqual([['world', 'world/0']]);
    });
  });
});

describe('order', () => {
  test('a split waits for what is in flight on its group, and later calls wait for the split', async () => {
    await withNcclWorld(2, async (ranks, network) => {
      const results = await onAll(ranks, async (backend) => {
        const before = Int32Array.of(1);
        const after = Int32Array.of(2);
        const first = backend.allReduce(before, 'Sum');
        const splitting = backend.split([1, 0]);
        const last = backend.allReduce(after, 'Sum');
        const child = await splitting;
        await Promise.all([first, last]);
        return [before[0], after[0], child?.rank];
      });
      expect(results).toEqual([
        [2, 4, 1],
        [2, 4, 0],
      ]);
      expect(network.misuses).toEqual([]);
      const launches = ranks[0]?.gpu.calls.filter((name) => name === 'collective' || name === 'commSplit');
      expect(launches).toEqual(['collective', 'commSplit', 'collective']);
    });
  });

  test('collectives of a group complete in the order of their calls', async () => {
    await withNcclWorld(2, async (ranks, network) => {
      network.isStuck = true;
      const settled: string[] = [];
      const works = ranks.map(({ backend }, rank) => {
        const first = backend.allReduce(new Float32Array(1), 'Sum');
        const second = backend.barrier(); // nothing to move
        return [
          first.then(() => settled.push(`allReduce ${rank}`)),
          second.then(() => settled.push(`barrier ${rank}`)),
        ];
      });
      await turns(20);
      expect(settled).toEqual([]);
      network.isStuck = false;
      network.wake();
      await Promise.all(works.flat());
      for (const rank of [0, 1])
        expect(settled.indexOf(`allReduce ${rank}`)).toBeLessThan(settled.indexOf(`barrier ${rank}`));
    });
  });

  test('with checks before, nothing is launched until all ranks have announced the call', async () => {
    process.env['LOCKSTEP_NCCL_CHECKS'] = 'before';
    await withNcclWorld(2, async (ranks) => {
      const [first, second] = ranks as [NcclRank, NcclRank];
      const work = first.backend.allReduce(new Float32Array(1), 'Sum');
      await turns(10);
      expect(first.gpu.calls).not.toContain('collective');
      await Promise.all([work, second.backend.allReduce(new Float32Array(1), 'Sum')]);
      expect(first.gpu.calls).toContain('collective');
      const errors = await onAll(ranks, (backend, rank) => failureOf(backend.broadcast(new Float32Array(1), rank)));
      for (const error of errors) expect(error.name).toBe('CollectiveMismatchError');
      expect(first.gpu.calls.filter((name) => name === 'collective')).toHaveLength(1);
    });
    delete process.env['LOCKSTEP_NCCL_CHECKS'];
  });

  test('beside the checks, a call is launched at once', async () => {
    await withNcclWorld(2, async (ranks) => {
      const [first, second] = ranks as [NcclRank, NcclRank];
      const work = first.backend.allReduce(new Float32Array(1), 'Sum');
      expect(first.gpu.calls.slice(-2)).toEqual(['upload', 'collective']);
      await Promise.all([work, second.backend.allReduce(new Float32Array(1), 'Sum')]);
    });
  });
});

test('closing a group in the middle of a call that all ranks have come to ends it on the others too', async () => {
  await withNcclWorld(2, async (ranks, network) => {
    network.isStuck = true;
    const works = ranks.map(({ backend }) => failureOf(backend.allReduce(new Float32Array(1), 'Sum')));
    await turns(10);
    await ranks[1]?.backend.close();
    const errors = await Promise.all(works);
    expect(errors[1]).toMatchObject({ name: 'ClosedError', context: { rank: 1, sequence: 0 } });
    expect(errors[0]).toMatchObject({ name: 'PeerLostError', context: { ranks: [1], rank: 0 } });
    expect(errors[0]?.message).toMatch(/rank 1 has closed group world, with allReduce.*sequence 0.* in flight there\./);
  });
});

test('a call that nobody awaits and that fails ends the group', async () => {
  await withNcclWorld(1, async ([only]) => {
    const { backend, gpu } = only as NcclRank;
    gpu.failNext('collective', nativeFailure('NCCL', 'internal error', { call: 'ncclAllReduce', result: 3 }));
    void backend.allReduce(new Float32Array(1), 'Sum');
    await turns(5);
    const error = await failureOf(backend.barrier());
    expect(error).toMatchObject({ name: 'ClosedError', cause: { name: 'NativeError' } });
  });
});
