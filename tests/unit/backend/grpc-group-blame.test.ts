/** Who gets the blame, where several things are wrong at a time. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { Backend } from '../../../src/backend/backend';
import { withGrpcWorld, type GrpcRank } from '../../helpers/grpc-worlds';
import { failureOf } from './mock-worlds';

const floats = (length: number): Float32Array => new Float32Array(length);
const backendsOf = (ranks: readonly GrpcRank[]): readonly Backend[] => ranks.map(({ backend }) => backend);

describe('who is blamed at a deadline', () => {
  /** As if the process were stopped: it reads nothing, and so does not answer. */
  const stop = (ranks: readonly GrpcRank[], rank: number): void => {
    for (let peer = 0; peer < ranks.length; peer++) if (peer !== rank) ranks[rank]?.mesh.hold(peer);
  };

  const LENGTH = 100_000; // by chain: rank 2 sends to 0, which sends to 1
  const WAITING = `Rank 1 waits in broadcast(float32[${LENGTH}], from rank 2), collective 0 of group world.`;

  /** Rank 1 waits for rank 0 in collective 0; rank 2 has done its part of that, and times out in the next. */
  const timeoutOfRank2 = async (ranks: readonly GrpcRank[]): Promise<Awaited<ReturnType<typeof failureOf>>> => {
    const [, b, c] = backendsOf(ranks) as [Backend, Backend, Backend];
    const waiting = failureOf(b.broadcast(floats(LENGTH), 2));
    await c.broadcast(floats(LENGTH), 2);
    const error = await failureOf(c.barrier({ timeoutMs: 40 }));
    await waiting;
    return error;
  };

  test('a rank that does not answer, not one that waits for it in an earlier call', async () => {
    await withGrpcWorld(3, async (ranks) => {
      stop(ranks, 0);
      const error = await timeoutOfRank2(ranks);
      expect(error.context).toMatchObject({ op: 'barrier', sequence: 1, group: 'world', rank: 2, ranks: [0] });
      expect(error.message).toContain(`within 40 ms. Rank 0 did not arrive (and does not answer). ${WAITING}`);
    });
  });

  test('where all answer, a rank that is in no call, not one that waits for it', async () => {
    await withGrpcWorld(3, async (ranks) => {
      const error = await timeoutOfRank2(ranks);
      expect(error.context.ranks).toEqual([0]);
      expect(error.message).toContain(`within 40 ms. Rank 0 did not arrive. ${WAITING}`);
    });
  });

  test('a call whose deadline has passed times out, though a rank in an earlier call was the first to say so', async () => {
    await withGrpcWorld(3, async (ranks) => {
      const [, { backend: b }, { backend: c, mesh }] = ranks as [GrpcRank, GrpcRank, GrpcRank];
      const works = [b.broadcast(floats(LENGTH), 2, { timeoutMs: 250 }), c.broadcast(floats(LENGTH), 2)];
      await works[1];
      mesh.hold(0);
      const ahead = c.barrier({ timeoutMs: 40 }); // asks, and waits for rank 0 to answer
      for (const error of await Promise.all([works[0] as PromiseLike<unknown>, ahead].map(failureOf))) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', context: { ranks: [0] } });
        expect(error.message).toMatch(/collective 0 of group world, on rank 1: .*Rank 0 did not arrive/);
      }
    });
  });

  test('a rank that waits in another group is said to, and is to blame if there is nobody else', async () => {
    await withGrpcWorld(2, async (ranks) => {
      const [a, b] = backendsOf(ranks) as [Backend, Backend];
      const [, child] = await Promise.all([a.split([0, 1]), b.split([0, 1])]);
      const other = failureOf((child as Backend).barrier({ timeoutMs: 200 }));
      const error = await failureOf(a.allReduce(floats(1), 'Sum', { timeoutMs: 40 }));
      expect(error.context.ranks).toEqual([1]);
      expect(error.message).toContain('Rank 1 waits in barrier(), collective 0 of group world/0.');
      expect((await other).code).toBe('LOCKSTEP_TIMEOUT');
    });
  });

  test('a receive and a batch name op, tag and the silent peer', async () => {
    for (const isBatch of [false, true]) {
      await withGrpcWorld(3, async (ranks) => {
        const [, b, c] = backendsOf(ranks) as [Backend, Backend, Backend];
        stop(ranks, 0);
        const waiting = failureOf(c.barrier());
        const from0 = { op: 'recv' as const, data: floats(2), peer: 0, tag: 7 };
        const from2 = { op: 'recv' as const, data: floats(2), peer: 2, tag: 8 };
        const options = { timeoutMs: 40 };
        const error = await failureOf(isBatch ? b.batch([from0, from2], options) : b.recv(floats(2), 0, 7, options));
        expect(error.code).toBe('LOCKSTEP_TIMEOUT');
        expect(error.context).toMatchObject({ op: isBatch ? 'batch' : 'recv', group: 'world', rank: 1, ranks: [0] });
        expect(error.message).toContain('recv(float32[2], from rank 0, tag 7)');
        expect(error.message).toContain('Rank 0 did not arrive (and does not answer).');
        expect(error.message.includes('Rank 2 waits in barrier(), collective 0 of group world.')).toBe(isBatch);
        await waiting;
      });
    }
  });
});

describe('a loss and a mismatch at the same time', () => {
  const RESET = new Error('connection reset');

  test('a rank that disagrees because it has heard of the loss in part gets the loss', async () => {
    await withGrpcWorld(4, async (ranks) => {
      const [a, b, c, d] = ranks as [GrpcRank, GrpcRank, GrpcRank, GrpcRank];
      const children = await Promise.all(backendsOf(ranks).map((backend) => backend.split([0, 1, 2])));
      b.mesh.hold(3); // what rank 3 says of the world comes late
      const inWorld = failureOf(a.backend.allReduce(floats(1), 'Sum'));
      const inChild = failureOf((children[1] as Backend).barrier());
      c.mesh.link(3).destroy(RESET); // rank 3 tells ranks 0 and 1
      expect((await inWorld).context.ranks).toEqual([2]);
      c.mesh.link(0).destroy(RESET); // rank 0 has nothing to tell but of the child
      expect(await inChild).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [2] } });
      const fallback = failureOf(b.backend.barrier()); // where rank 0 called allReduce
      expect(await fallback).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [2], group: 'world' } });
      b.mesh.release(3);
      await d.backend.close();
    });
  });

  test('ranks that disagree while a third is being lost get the loss', async () => {
    await withGrpcWorld(3, async (ranks) => {
      const [a, b, c] = ranks as [GrpcRank, GrpcRank, GrpcRank];
      const errors = Promise.all([a.backend.allReduce(floats(1), 'Sum'), b.backend.barrier()].map(failureOf));
      for (const peer of [0, 1]) c.mesh.hold(peer); // it does not answer any more
      await sleepMs(1100); // a link may take 1 s to find out that it is gone
      c.mesh.destroy(RESET);
      for (const error of await errors) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [2] } });
      }
    });
  });
});

describe('who is blamed when ranks close', () => {
  test('the failure that made a rank close goes ahead of its goodbye, whichever link is faster', async () => {
    await withGrpcWorld(3, async (ranks) => {
      const [{ backend: a }, { backend: b }, { backend: c, mesh }] = ranks as [GrpcRank, GrpcRank, GrpcRank];
      mesh.hold(0); // what rank 0 says arrives late at rank 2
      const [onB, onC] = [failureOf(b.barrier()), failureOf(c.barrier())];
      a.abort(new Error('out of paper'));
      await onB;
      await b.close();
      const error = await onC;
      expect(error).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { message: 'out of paper' } });
      mesh.release(0);
    });
  });

  test('a rank that has closed still says what it called, so that a mismatch shows it', async () => {
    await withGrpcWorld(3, async (ranks) => {
      const [a, b, c] = backendsOf(ranks) as [Backend, Backend, Backend];
      const others = [failureOf(a.barrier()), failureOf(c.barrier())];
      await b.broadcast(floats(4), 1).then(
        () => undefined,
        () => undefined,
      );
      await b.close();
      for (const error of await Promise.all(others)) {
        expect(error.code).toBe('LOCKSTEP_MISMATCH');
        expect(error.message).toContain('rank 1: broadcast(float32[4], from rank 1)');
      }
    });
  });
});
