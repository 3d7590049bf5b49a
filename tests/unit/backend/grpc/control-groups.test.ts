/** Child groups of a control plane, and the exchange of bytes at its start. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { GrpcControlGroup } from '../../../../src/backend/grpc/control-group';
import { NativeError } from '../../../../src/core/errors';
import type { Work } from '../../../../src/core/work';
import { withControlPlanes, type ControlRank } from '../../../helpers/control-planes';
import { failureOf } from '../mock-worlds';
import { SEEDS, allReduce, barrier, failuresOf, floats, recv, rootsOf, send, split, type Two } from './control-calls';

describe('child groups', () => {
  test('have the ranks of the split in its order, and errors that name both numbers', async () => {
    await withControlPlanes(4, async (ranks) => {
      const splits = rootsOf(ranks).map((group) => split(group, [3, 1]));
      await Promise.all(splits);
      const children = rootsOf(ranks).map((group, rank) => group.child(splits[rank] as Work));
      expect(children.map((child) => child?.id)).toEqual([undefined, 'world/0', undefined, 'world/0']);
      expect(children.map((child) => child?.rank)).toEqual([undefined, 1, undefined, 0]);
      const [one, three] = [children[1], children[3]] as unknown as Two;
      await Promise.all([allReduce(one), allReduce(three), send(one, floats(1), 0), recv(three, floats(1), 1)]);
      const error = await failureOf(barrier(one, { timeoutMs: 40 }));
      expect(error).toMatchObject({ context: { group: 'world/0', rank: 1, ranks: [0], globalRanks: [3] } });
      await Promise.all(rootsOf(ranks).map((group) => barrier(group))); // the parent lives on
    });
  });

  test('are the same groups on all ranks, in whatever order each takes them', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const [ofA, ofB] = [a, b].map((group) => [split(group, [0, 1]), split(group, [0, 1])]) as [Work[], Work[]];
      await Promise.all([...ofA, ...ofB]);
      const children = [ofA[1], ofA[0]].map((work) => a.child(work as Work));
      children.push(...[ofB[0], ofB[1]].map((work) => b.child(work as Work)));
      expect(children.map((child) => child?.id)).toEqual(['world/1', 'world/0', 'world/0', 'world/1']);
    });
  });

  test('may be used by ranks that have made them before the others', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const splits = [split(a, [0, 1]), split(b, [0, 1])] as const;
      await Promise.all(splits);
      const works = [barrier(a.child(splits[0]) as GrpcControlGroup)];
      await sleepMs(3);
      works.push(barrier(b.child(splits[1]) as GrpcControlGroup));
      await Promise.all(works);
    });
  });

  test('fail alone, but a lost rank ends all that hold it', async () => {
    await withControlPlanes(3, async (ranks) => {
      const splits = rootsOf(ranks).map((group) => [split(group, [0, 1]), split(group, [0, 2])] as const);
      await Promise.all(splits.flat());
      const [a, b, c] = rootsOf(ranks) as [GrpcControlGroup, GrpcControlGroup, GrpcControlGroup];
      const withB = [a.child(splits[0]?.[0] as Work), b.child(splits[1]?.[0] as Work)] as unknown as Two;
      const withC = [a.child(splits[0]?.[1] as Work), c.child(splits[2]?.[1] as Work)] as unknown as Two;
      withB[1].fail(new NativeError('broken'));
      await failureOf(barrier(withB[0]));
      await Promise.all(withC.map((group) => barrier(group)));
      ranks[2]?.mesh.destroy(new Error('connection reset'));
      expect(await failureOf(barrier(withC[0]))).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [1] } });
    });
  });

  test('of a group that was closed meanwhile are closed', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const splits = [split(a, [0, 1]), split(b, [0, 1])] as const;
      await Promise.all(splits);
      a.close();
      expect(a.child(splits[0])?.isClosed).toBe(true);
    });
  });
});

describe('exchange', () => {
  const bytesOf = (rank: number): Uint8Array => Uint8Array.from({ length: 3 * rank }, (_unused, i) => rank + i);

  test.each([1, 2, 3, 7])('gives each of %i ranks the bytes of all, by rank', async (size) => {
    for (const seed of SEEDS) {
      await withControlPlanes(
        size,
        async (ranks) => {
          const exchanges = ranks.map(({ plane }, rank) => {
            const bytes = bytesOf(rank);
            const exchanged = plane.exchange(bytes, 5000);
            bytes.fill(0); // the caller's own again
            return exchanged;
          });
          const everybodys = Array.from({ length: size }, (_unused, rank) => bytesOf(rank));
          for (const all of await Promise.all(exchanges)) expect(all).toEqual(everybodys);
        },
        { seed },
      );
    }
  });

  test('takes no sequence number, however often it is called, and any number of bytes', async () => {
    await withControlPlanes(2, async (ranks) => {
      for (const numBytes of [0, 128, 3 * 2 ** 20]) {
        const all = await Promise.all(
          ranks.map(({ plane }, rank) => plane.exchange(new Uint8Array(numBytes * rank), 5000)),
        );
        for (const each of all) expect(each.map(({ byteLength }) => byteLength)).toEqual([0, numBytes]);
      }
      const works = rootsOf(ranks).map((group) => barrier(group));
      expect(works.map(({ info }) => info.sequence)).toEqual([0, 0]);
      await Promise.all(works);
    });
  });

  test('names the rank that does not come, and ends the group', async () => {
    await withControlPlanes(3, async (ranks) => {
      const errors = await failuresOf(
        [0, 2].map((rank) => (ranks[rank] as ControlRank).plane.exchange(bytesOf(rank), 60)),
      );
      for (const error of errors) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', context: { op: 'exchange', ranks: [1] } });
        expect(error.message).toMatch(/^exchange\(\), group world, on rank \d: .*Rank 1 did not arrive/);
      }
      expect(await failureOf((ranks[0] as ControlRank).plane.exchange(bytesOf(0), 60))).toMatchObject({
        code: 'LOCKSTEP_CLOSED',
        cause: { code: 'LOCKSTEP_TIMEOUT' },
      });
    });
  });

  test('names a rank that is lost or closes meanwhile', async () => {
    for (const leave of [
      ({ mesh }: ControlRank): void => mesh.destroy(new Error('connection reset')),
      ({ root }: ControlRank): void => root.close(),
    ]) {
      await withControlPlanes(2, async (ranks) => {
        const waiting = failureOf((ranks[0] as ControlRank).plane.exchange(bytesOf(1), 5000));
        leave(ranks[1] as ControlRank);
        expect(await waiting).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { op: 'exchange', ranks: [1] } });
      });
    }
  });
});
