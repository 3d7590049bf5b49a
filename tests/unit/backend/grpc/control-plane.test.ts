/** What ranks agree on where the data of their calls travels elsewhere. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { Backend } from '../../../../src/backend/backend';
import { checkAllReduce } from '../../../../src/backend/check-collective';
import type { GrpcControlGroup } from '../../../../src/backend/grpc/control-group';
import type { DataBuffer } from '../../../../src/core/dtype';
import { CallSite } from '../../../../src/core/call-site';
import type { Work } from '../../../../src/core/work';
import { callerOf, withControlPlanes } from '../../../helpers/control-planes';
import { withGrpcWorld } from '../../../helpers/grpc-worlds';
import { failureOf } from '../mock-worlds';
import {
  SEEDS,
  allReduce,
  allToAll,
  barrier,
  batch,
  broadcast,
  failuresOf,
  floats,
  recv,
  rootsOf,
  send,
  type Two,
} from './control-calls';

describe('announcing a collective', () => {
  const calls: Readonly<Record<string, (group: GrpcControlGroup, size: number) => Work>> = {
    allReduce: (group) => allReduce(group, 5),
    'a broadcast, whose source waits for nobody where its data travels here': (group) => broadcast(group, 0),
    barrier: (group) => barrier(group),
    allToAll: (group, size) => allToAll(group, 3 * size),
  };

  test.each(Object.keys(calls))('%s: settles once every rank has announced it, and not before', async (name) => {
    const call = calls[name] as (typeof calls)[string];
    for (const size of [1, 2, 3, 4, 7]) {
      for (const seed of SEEDS) {
        await withControlPlanes(
          size,
          async (ranks) => {
            const [late, ...early] = rootsOf(ranks).reverse() as [GrpcControlGroup];
            const works = early.map((group) => call(group, size));
            await sleepMs(3);
            expect(works.map((work) => work.isCompleted)).toEqual(works.map(() => false));
            await Promise.all([call(late, size), ...works]);
          },
          { seed },
        );
      }
    }
  });

  test('takes the next sequence number, and completes in the order of the calls', async () => {
    await withControlPlanes(
      3,
      async (ranks) => {
        const order: string[] = [];
        const works = rootsOf(ranks).flatMap((group) =>
          [broadcast(group, 0), barrier(group), allReduce(group)].map((work) => {
            work.onSettled(() => order.push(`${group.rank}: ${work.info.sequence}`));
            return work;
          }),
        );
        await Promise.all(works);
        for (const rank of [0, 1, 2]) {
          expect(order.filter((line) => line.startsWith(String(rank)))).toEqual([0, 1, 2].map((n) => `${rank}: ${n}`));
        }
      },
      { seed: 5 },
    );
  });

  test('looks at no buffer: it may be in the memory of a device', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const buffer = new Proxy({} as DataBuffer, {
        get: (_target, name) => {
          throw new Error(`${String(name)} of the buffer was read`);
        },
      });
      const call = { op: 'allReduce', reduceOp: 'Sum', dtype: 'float32', counts: 4 } as const;
      const sent = { op: 'send', dtype: 'float32', count: 4, peer: 1, tag: 0 } as const;
      const received = { ...sent, op: 'recv', peer: 0 } as const;
      await Promise.all([
        ...[a, b].map((group) => group.announce({ call, send: buffer, recv: buffer, timeoutMs: 1000 })),
        a.announceMessages('send', { parts: [{ call: sent, data: buffer }], timeoutMs: 1000 }),
        b.announceMessages('recv', { parts: [{ call: received, data: buffer }], timeoutMs: 1000 }),
      ]);
    });
  });
});

describe('ranks that disagree about a collective', () => {
  test('all learn what each called, with its line; later calls are refused because of it', async () => {
    await withControlPlanes(
      3,
      async (ranks) => {
        const roots = rootsOf(ranks);
        const works = roots.map((group) => {
          const length = group.rank === 1 ? 5 : 4;
          const callSite = CallSite.capture();
          return group.announce(checkAllReduce(callerOf(group), floats(length), 'Sum'), callSite);
        });
        for (const error of await failuresOf(works)) {
          expect(error).toMatchObject({ code: 'LOCKSTEP_MISMATCH', context: { sequence: 0, ranks: [1] } });
          expect(error.message).toMatch(/rank 0: allReduce\(float32\[4\], Sum\) at .*control-plane\.test\.ts:\d+/);
          expect(error.message).toMatch(/rank 1: allReduce\(float32\[5\], Sum\) at .*control-plane\.test\.ts:\d+/);
        }
        for (const group of roots) {
          const error = await failureOf(barrier(group));
          expect(error).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_MISMATCH' } });
        }
      },
      { callSites: true },
    );
  });

  test.each([2, 3, 4])('in an all-to-all of %i ranks the pair whose counts disagree is named', async (size) => {
    for (const seed of SEEDS) {
      await withControlPlanes(
        size,
        async (ranks) => {
          const ones = new Array<number>(size).fill(1);
          const works = rootsOf(ranks).map((group) =>
            allToAll(group, size + 1, {
              sendCounts: ones.map((one, to) => (group.rank === 1 && to === 0 ? 2 : one)),
              recvCounts: ones,
            }),
          );
          // A third rank may have heard of all others before; then it learns at its next call.
          for (const error of await failuresOf(works.slice(0, 2))) {
            expect(error).toMatchObject({ code: 'LOCKSTEP_MISMATCH', context: { sequence: 0, ranks: [1, 0] } });
            expect(error.message).toContain('what rank 1 sends to rank 0 is not what rank 0 receives from rank 1');
          }
          for (const work of works.slice(2)) await work.catch(() => undefined);
        },
        { seed },
      );
    }
  });

  test('counts that differ from rank to rank but fit pair by pair are no mismatch', async () => {
    await withControlPlanes(3, async (ranks) => {
      const count = (from: number, to: number): number => 3 * from + to;
      const works = rootsOf(ranks).map((group) =>
        allToAll(group, 30, {
          sendCounts: [0, 1, 2].map((to) => count(group.rank, to)),
          recvCounts: [0, 1, 2].map((from) => count(from, group.rank)),
        }),
      );
      await Promise.all(works);
    });
  });
});

describe('the errors of announcements', () => {
  interface Mistake {
    readonly announced: (group: GrpcControlGroup) => Work;
    readonly called: (backend: Backend) => Work;
  }
  const mistakes: Readonly<Record<string, Mistake>> = {
    'other lengths': {
      announced: (group) => allReduce(group, 4 + group.rank),
      called: (backend) => backend.allReduce(floats(4 + backend.rank), 'Sum'),
    },
    'other ops': {
      announced: (group) => (group.rank === 2 ? barrier(group) : allReduce(group, 1)),
      called: (backend) => (backend.rank === 2 ? backend.barrier() : backend.allReduce(floats(1), 'Sum')),
    },
    'other roots': {
      announced: (group) => broadcast(group, group.rank),
      called: (backend) => backend.broadcast(floats(1), backend.rank),
    },
    'counts of an all-to-all': {
      announced: (group) => allToAll(group, 3, group.rank === 0 ? { sendCounts: [1, 0, 1] } : {}),
      called: (backend) => backend.allToAll(floats(3), floats(3), backend.rank === 0 ? { sendCounts: [1, 0, 1] } : {}),
    },
  };

  test.each(Object.keys(mistakes))('are those of the gRPC backend: %s', async (name) => {
    const { announced, called } = mistakes[name] as Mistake;
    const messages: (readonly (string | undefined)[])[] = [];
    const run = async (works: readonly Work[]): Promise<void> => {
      await Promise.allSettled(works);
      messages.push(works.map(({ error }) => error?.message));
    };
    await withControlPlanes(3, (ranks) => run(rootsOf(ranks).map(announced)));
    await withGrpcWorld(3, (ranks) => run(ranks.map(({ backend }) => called(backend))));
    expect(messages[0]?.filter((message) => message !== undefined).length).toBeGreaterThan(1);
    expect(messages[0]?.slice(0, 2)).toEqual(messages[1]?.slice(0, 2)); // rank 2 may have heard of all others before
  });
});

describe('deadlines', () => {
  test('the ranks that did not come are named', async () => {
    await withControlPlanes(4, async (ranks) => {
      const roots = rootsOf(ranks);
      const works = [0, 2].map((rank) => allReduce(roots[rank] as GrpcControlGroup, 4, { timeoutMs: 60 }));
      for (const error of await failuresOf(works)) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', context: { op: 'allReduce', ranks: [1, 3] } });
        expect(error.message).toMatch(/^allReduce\(float32\[4\], Sum\), collective 0 of group world, on rank/);
        expect(error.message).toContain('Ranks 1, 3 did not arrive.');
      }
    });
  });

  test('the receiver that did not come is named, and the call by its own arguments', async () => {
    await withControlPlanes(2, async (ranks) => {
      const error = await failureOf(send(rootsOf(ranks)[0] as GrpcControlGroup, floats(4), 1, 7, { timeoutMs: 40 }));
      expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', context: { op: 'send', ranks: [1] } });
      expect(error.message).toMatch(
        /^send\(float32\[4\], to rank 1, tag 7\), group world, on rank 0: .*Rank 1 did not arrive/,
      );
    });
  });
});

describe('announcing messages', () => {
  test('a send settles once its receive is announced, and not before', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const sending = send(a, floats(2 ** 20), 1);
      await sleepMs(5);
      expect(sending.isCompleted).toBe(false);
      await recv(b, floats(2 ** 20), 0);
      await sending;
    });
  });

  test('messages of a pair meet in the order of the calls, both ways, alone and in batches', async () => {
    for (const seed of SEEDS) {
      await withControlPlanes(
        2,
        async (ranks) => {
          const [a, b] = rootsOf(ranks) as unknown as Two;
          const works = [
            send(a, floats(1), 1, 3),
            send(a, new Int8Array(2), 1, 1),
            recv(b, floats(1), 0, 3),
            batch(b, [
              { op: 'send', data: floats(3), peer: 0, tag: 2 },
              { op: 'recv', data: new Int8Array(2), peer: 0, tag: 1 },
            ]),
            recv(a, floats(3), 1, 2),
          ];
          await Promise.all(works);
        },
        { seed },
      );
    }
  });

  const misfits: Readonly<Record<string, readonly [(group: GrpcControlGroup) => Work, string]>> = {
    tag: [(group) => recv(group, floats(4), 0, 6), 'recv(float32[4], from rank 0, tag 6)'],
    count: [(group) => recv(group, floats(5), 0, 5), 'recv(float32[5], from rank 0, tag 5)'],
    dtype: [(group) => recv(group, new Int32Array(4), 0, 5), 'recv(int32[4], from rank 0, tag 5)'],
  };

  test.each(Object.keys(misfits))('where the %s differs both ranks are told both calls', async (what) => {
    const [receive, description] = misfits[what] as (typeof misfits)[string];
    for (const seed of SEEDS) {
      await withControlPlanes(
        2,
        async (ranks) => {
          const [a, b] = rootsOf(ranks) as unknown as Two;
          for (const error of await failuresOf([send(a, floats(4), 1, 5), receive(b)])) {
            expect(error).toMatchObject({ code: 'LOCKSTEP_MISMATCH', context: { ranks: [0, 1] } });
            expect(error.message).toContain('rank 0: send(float32[4], to rank 1, tag 5)');
            expect(error.message).toContain(`rank 1: ${description}`);
          }
        },
        { seed },
      );
    }
  });

  test('tags do not bring messages together that were sent in another order', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const works = [send(a, floats(1), 1, 0), send(a, floats(1), 1, 1), recv(b, floats(1), 0, 1)];
      for (const error of await failuresOf(works)) {
        expect(error.code).toBe('LOCKSTEP_MISMATCH');
        expect(error.message).toMatch(/to rank 1, tag 0\)[^]*from rank 0, tag 1\)[^]*order of the calls/);
      }
    });
  });

  test('messages of different pairs, and collectives beside them, do not wait for each other', async () => {
    await withControlPlanes(3, async (ranks) => {
      const [a, b, c] = rootsOf(ranks) as [GrpcControlGroup, GrpcControlGroup, GrpcControlGroup];
      const waiting = send(a, floats(1), 2);
      await Promise.all([send(a, floats(1), 1), recv(b, floats(1), 0)]);
      await Promise.all([a, b, c].map((group) => barrier(group)));
      expect(waiting.isCompleted).toBe(false);
      await Promise.all([waiting, recv(c, floats(1), 0)]);
    });
  });
});
