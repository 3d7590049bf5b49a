/** How calls and groups end when something else happens at the same time. */
import { nativeFailure, type FakeCommunicator } from '../../../helpers/fake-gpu';
import { failureOf, onAll, turns, withNcclWorld, type NcclRank } from '../../../helpers/nccl-worlds';

const busyFor = (ms: number): void => {
  const end = performance.now() + ms;
  while (performance.now() < end);
};

test('a call that was done before its deadline is not failed because the rank computed until after it', async () => {
  await withNcclWorld(1, async ([only], network) => {
    network.isStuck = true;
    const work = (only as NcclRank).backend.allReduce(new Float32Array(2), 'Sum', { timeoutMs: 60 });
    await turns(5);
    network.isStuck = false;
    network.wake(); // in the next turn
    busyFor(120);
    await work;
  });
});

test('a failure keeps, on its own rank, what the addon threw', async () => {
  await withNcclWorld(2, async (ranks) => {
    const thrown = nativeFailure('OUT_OF_MEMORY', 'no memory', { call: 'cuMemAlloc', result: 2 });
    ranks[0]?.gpu.failNext('allocate', thrown);
    const [own, other] = await onAll(ranks, (backend) => failureOf(backend.allReduce(new Float32Array(1), 'Sum')));
    expect(own?.cause).toBe(thrown);
    expect(other).toMatchObject({ name: 'NativeError', context: { ranks: [0], rank: 1, sequence: 0 } });
  });
});

test('a rank that closes a group gets ClosedError from all its calls in flight', async () => {
  await withNcclWorld(2, async (ranks, network) => {
    network.isStuck = true;
    const [first, second] = ranks as [NcclRank, NcclRank];
    const all = ranks.map(({ backend }) => failureOf(backend.allReduce(new Float32Array(1), 'Sum')));
    const lone = failureOf(second.backend.recv(new Float32Array(1), 0));
    const later = failureOf(second.backend.allReduce(new Float32Array(1), 'Sum'));
    await turns(10);
    await second.backend.close();
    for (const call of [all[1], lone, later] as Promise<Error>[]) {
      const error = await call;
      expect(error.name + ': ' + error.message).toMatch(/^ClosedError: .*this rank closed group world/);
    }
    expect(await all[0]).toMatchObject({ name: 'PeerLostError' });
    void first;
  });
});

test('no timer is left when a call was aborted', async () => {
  await withNcclWorld(1, async ([only], network) => {
    network.isStuck = true;
    const { backend } = only as NcclRank;
    const work = failureOf(backend.allReduce(new Float32Array(1), 'Sum'));
    await turns(3);
    const before = process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
    await backend.close();
    await work;
    await turns(3);
    expect(process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length).toBeLessThanOrEqual(
      before - 1,
    );
  });
});

test('timeouts of all finite sizes', async () => {
  await withNcclWorld(2, async (ranks) => {
    await onAll(ranks, (backend) => backend.allReduce(new Float32Array(1), 'Sum', { timeoutMs: 1e300 }));
  });
});

/** Communicators that a rank's splits have made. */
const noteCommunicators = (ranks: readonly NcclRank[]): FakeCommunicator[] => {
  const made: FakeCommunicator[] = [];
  for (const { gpu } of ranks) {
    const { commSplit } = gpu.addon;
    (gpu.addon as { commSplit: typeof commSplit }).commSplit = async (...args) => {
      const communicator = await commSplit(...args);
      if (communicator !== undefined) made.push(communicator as unknown as FakeCommunicator);
      return communicator;
    };
  }
  return made;
};

test('a split that meets a close of its group ends on both ranks, and no communicator stays', async () => {
  for (let numTurns = 0; numTurns < 30; numTurns++) {
    await withNcclWorld(
      2,
      async (ranks) => {
        const made = noteCommunicators(ranks);
        const [first, second] = ranks as [NcclRank, NcclRank];
        const splits = ranks.map(({ backend }) =>
          backend.split([1, 0]).then(
            () => undefined,
            (error: Error) => error,
          ),
        );
        await turns(numTurns);
        await second.backend.close();
        const [other, own] = await Promise.all(splits);
        expect([undefined, 'ClosedError']).toContain(own?.name);
        expect([undefined, 'PeerLostError']).toContain(other?.name);
        await first.backend.close();
        await turns(10);
        expect(made.filter(({ end }) => end === undefined)).toEqual([]);
      },
      { seed: numTurns },
    );
  }
});

test('splits may overlap, nest, and be made while calls are in flight', async () => {
  await withNcclWorld(3, async (ranks, network) => {
    const made = noteCommunicators(ranks);
    await onAll(ranks, async (backend, rank) => {
      const data = Int32Array.of(1);
      const works = [backend.allReduce(data, 'Sum')];
      const [a, b] = await Promise.all([backend.split([0, 1]), backend.split([2, 1, 0])]);
      const more = await Promise.all([a?.split([1, 0]), b?.split([0])]);
      const sums = [a, b, ...more].map((group) => {
        const sum = Int32Array.of(1);
        works.push(group === undefined ? backend.batch([]) : group.allReduce(sum, 'Sum'));
        return sum;
      });
      await Promise.all(works);
      expect([data[0], ...sums.map((sum) => sum[0])]).toEqual(
        [
          [3, 2, 3, 2, 1],
          [3, 2, 3, 2, 1],
          [3, 1, 3, 1, 1],
        ][rank],
      );
    });
    expect(network.misuses).toEqual([]);
    await Promise.all(ranks.map(({ backend }) => backend.close()));
    expect(made).toHaveLength(8);
    expect(made.filter(({ end }) => end === undefined)).toEqual([]);
  });
});
