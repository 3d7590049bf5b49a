import { setTimeout as sleepMs } from 'node:timers/promises';
import type { Backend } from '../../../src/backend/backend';
import { EAGER_BYTES } from '../../../src/backend/grpc/channel-outbox';
import { EAGER_BYTES_PER_GROUP } from '../../../src/backend/grpc/eager-budget';
import { groupWordsOf } from '../../../src/backend/grpc/fingerprint';
import { FrameKind } from '../../../src/backend/grpc/frame';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { withGrpcWorld, type GrpcRank } from '../../helpers/grpc-worlds';
import { failureOf } from './mock-worlds';

const MIB = 2 ** 20;
const floats = (length: number): Float32Array => new Float32Array(length);
const backendsOf = (ranks: readonly GrpcRank[]): readonly Backend[] => ranks.map(({ backend }) => backend);

/** Make the calls of all ranks and give how each failed. */
const failuresOf = (calls: readonly PromiseLike<unknown>[]): Promise<Awaited<ReturnType<typeof failureOf>>[]> =>
  Promise.all(calls.map(failureOf));

describe('what a rank sends', () => {
  test.each([1, 2, 3, 4])('an all-reduce of 3 MiB on %i ranks moves 2 (N-1)/N of it, and no more', async (size) => {
    await withGrpcWorld(size, async (ranks) => {
      const length = (3 * MIB) / 4;
      await Promise.all(backendsOf(ranks).map(async (backend) => backend.allReduce(floats(length), 'Sum')));
      for (const { traffic, backend } of ranks) {
        expect(traffic.dataBytes).toBe((2 * (size - 1) * 3 * MIB) / size);
        expect(traffic.dataBytes).toBe(backend.ledger.allReduce.bytes);
        expect(traffic.maxInFlight).toBeLessThanOrEqual(4);
      }
    });
  });

  test('the ledger counts what the mock counts', async () => {
    const program = async (backend: Backend): Promise<void> => {
      const { rank, worldSize: size } = backend;
      await backend.allReduce(floats(5), 'Sum');
      await backend.broadcast(floats(3), 1);
      await backend.allGather(floats(2), floats(2 * size));
      await backend.reduceScatter(floats(2 * size), floats(2), 'Max');
      await backend.reduce(floats(4), rank === 2 ? floats(4) : undefined, 2, 'Sum');
      await backend.allToAll(floats(size), floats(size));
      await backend.batch([
        { op: 'send', data: floats(7), peer: (rank + 1) % size },
        { op: 'recv', data: floats(7), peer: (rank + size - 1) % size },
      ]);
      await backend.barrier();
    };
    const mock = MockBackend.createWorld(3);
    await Promise.all(mock.map((backend) => backend.run(program)));
    await withGrpcWorld(3, async (ranks) => {
      await Promise.all(backendsOf(ranks).map(program));
      expect(ranks.map(({ backend }) => backend.ledger)).toEqual(mock.map((backend) => backend.ledger));
    });
  });

  test('to a rank that has not made the call yet it sends at most the eager bytes; then the rest', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      const [early, late] = [floats(MIB).fill(1), floats(MIB).fill(2)];
      const work = (a as GrpcRank).backend.allReduce(early, 'Sum');
      await sleepMs(40);
      expect((a as GrpcRank).traffic.dataBytes).toBeLessThanOrEqual(EAGER_BYTES);
      await (b as GrpcRank).backend.allReduce(late, 'Sum');
      await work;
      expect([early, late].map((data) => data.every((value) => value === 3))).toEqual([true, true]);
    });
  });

  test('of many calls that a slow rank has not made it sends at most the eager budget; then all the rest', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      const [numCalls, length] = [50, (256 * 1024) / 4];
      const works = Array.from({ length: numCalls }, (_unused, i) => a?.backend.broadcast(floats(length).fill(i), 0));
      await sleepMs(30);
      expect(a?.traffic.dataBytes).toBeLessThanOrEqual(EAGER_BYTES_PER_GROUP);
      expect(a?.traffic.dataBytes).toBeGreaterThan(EAGER_BYTES_PER_GROUP / 2);
      for (let i = 0; i < numCalls; i++) {
        const data = floats(length);
        await b?.backend.broadcast(data, 0);
        expect(data.every((value) => value === i)).toBe(true);
      }
      for (const work of works) await work;
      // What was given back is there again.
      const before = (a as GrpcRank).traffic.dataBytes;
      const again = Array.from({ length: numCalls }, () => a?.backend.broadcast(floats(length), 0));
      await sleepMs(30);
      expect((a as GrpcRank).traffic.dataBytes - before).toBeGreaterThan(EAGER_BYTES_PER_GROUP / 2);
      for (let i = 0; i < numCalls; i++) await b?.backend.broadcast(floats(length), 0);
      for (const work of again) await work;
    });
  });

  test('messages that nobody receives are held back at 8 times the eager bytes, and arrive whole and in order', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      const length = (2 * EAGER_BYTES) / 4;
      const works = Array.from({ length: 12 }, (_unused, i) => a?.backend.send(floats(length).fill(i), 1, i % 2));
      await sleepMs(20);
      expect(a?.traffic.dataBytes).toBeLessThanOrEqual(8 * EAGER_BYTES);
      for (let i = 0; i < 12; i++) {
        const data = floats(length);
        await b?.backend.recv(data, 0, i % 2);
        expect(data.every((value) => value === i)).toBe(true);
      }
      for (const work of works) await work;
    });
  });
});

describe('order', () => {
  test('collectives of a group complete in the order in which they were made', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      const first = a?.backend.allReduce(floats(1), 'Sum');
      const second = a?.backend.broadcast(floats(1), 0); // has all that it needs at once
      await sleepMs(10);
      expect(second?.isCompleted).toBe(false);
      await b?.backend.allReduce(floats(1), 'Sum');
      await first;
      await second;
      await b?.backend.broadcast(floats(1), 0);
    });
  });

  test('a group may be used by ranks that have made it while others still split', async () => {
    await withGrpcWorld(
      4,
      async (ranks) => {
        const sums = await Promise.all(
          backendsOf(ranks).map(async (backend) => {
            const sums: number[] = [];
            for (let round = 0; round < 10; round++) {
              const group = await backend.split([0, 1, 2, 3]);
              const data = Int32Array.of(1);
              await group?.allReduce(data, 'Sum');
              await group?.close();
              sums.push(data[0] as number);
            }
            return sums;
          }),
        );
        expect(sums).toEqual(ranks.map(() => new Array<number>(10).fill(4)));
      },
      { seed: 7 },
    );
  });
});

describe('mistakes', () => {
  test('two ranks that wait for each other in different calls find out, though neither sends anything', async () => {
    await withGrpcWorld(2, async (ranks) => {
      const errors = await failuresOf(ranks.map(({ backend }, rank) => backend.broadcast(floats(4), 1 - rank)));
      for (const error of errors) {
        expect(error.code).toBe('LOCKSTEP_MISMATCH');
        expect(error.message).toMatch(/rank 0: broadcast\(float32\[4\], from rank 1\)/);
        expect(error.message).toMatch(/rank 1: broadcast\(float32\[4\], from rank 0\)/);
      }
    });
  });

  test('a tag that no frame can carry is refused, and the group goes on', async () => {
    await withGrpcWorld(2, async (ranks) => {
      const error = await failureOf((ranks[0] as GrpcRank).backend.send(floats(1), 1, 2 ** 32));
      expect(error.code).toBe('LOCKSTEP_UNSUPPORTED');
      expect(error.message).toContain('4294967295');
      await Promise.all(backendsOf(ranks).map((backend) => backend.barrier()));
    });
  });

  test('a Work that nobody awaits poisons its group without an unhandled rejection', async () => {
    const unhandled: unknown[] = [];
    const onUnhandled = (reason: unknown): void => void unhandled.push(reason);
    process.on('unhandledRejection', onUnhandled);
    try {
      await withGrpcWorld(2, async ([a, b]) => {
        void a?.backend.allReduce(floats(1), 'Sum');
        void b?.backend.allReduce(floats(1), 'Max');
        await sleepMs(20);
        const error = await failureOf((a as GrpcRank).backend.barrier());
        expect(error.code).toBe('LOCKSTEP_CLOSED');
        expect((error.cause as Error).message).toMatch(/disagree/);
      });
      expect(unhandled).toEqual([]);
    } finally {
      process.off('unhandledRejection', onUnhandled);
    }
  });
});

describe('deadlines', () => {
  test('the rank that did not come is named, not those in between that wait for it themselves', async () => {
    await withGrpcWorld(4, async (ranks) => {
      const waiting = backendsOf(ranks).slice(1);
      const large = MIB / 4; // by chain: rank 3 hears from 2, 2 from 1, 1 from 0
      const errors = await failuresOf(waiting.map((backend) => backend.broadcast(floats(large), 0, { timeoutMs: 60 })));
      for (const error of errors) {
        expect(error.code).toBe('LOCKSTEP_TIMEOUT');
        expect(error.context.ranks).toEqual([0]);
        expect(error.message).toContain('Rank 0 did not arrive');
      }
    });
  });

  test('a call that waits behind another says so', async () => {
    await withGrpcWorld(2, async ([a]) => {
      const first = failureOf((a as GrpcRank).backend.allReduce(floats(1), 'Sum'));
      const error = await failureOf((a as GrpcRank).backend.broadcast(floats(1), 0, { timeoutMs: 40 }));
      expect(error.message).toMatch(/broadcast.*Rank 1 did not arrive in allReduce\(float32\[1\], Sum\), collective 0/);
      expect((await first).code).toBe('LOCKSTEP_TIMEOUT');
    });
  });
});

describe('ranks that leave', () => {
  test('a closed world: calls that wait for it fail at once, and so do later ones', async () => {
    await withGrpcWorld(3, async ([a, b, c]) => {
      const waiting = [a, b].map((rank) => failureOf((rank as GrpcRank).backend.allReduce(floats(2), 'Sum')));
      await c?.backend.close();
      for (const error of await Promise.all(waiting)) {
        expect(error.code).toBe('LOCKSTEP_PEER_LOST');
        expect(error.message).toMatch(/rank 2 has closed group world/);
        expect(error.context.ranks).toEqual([2]);
      }
      expect((await failureOf((a as GrpcRank).backend.send(floats(1), 2))).code).toBe('LOCKSTEP_CLOSED');
    });
  });

  test('a call made after a rank has left with nothing in flight names it', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      await b?.backend.close();
      await sleepMs(5);
      const error = await failureOf((a as GrpcRank).backend.barrier());
      expect(error.code).toBe('LOCKSTEP_PEER_LOST');
      expect(error.message).toMatch(/rank 1 has closed group world, and barrier\(\)/);
    });
  });

  test('a rank that goes down says why, to every group that holds it; others go on', async () => {
    await withGrpcWorld(3, async (ranks) => {
      const without = await Promise.all(backendsOf(ranks).map((backend) => backend.split([0, 2])));
      const waiting = [0, 2].map((rank) => failureOf((ranks[rank] as GrpcRank).backend.barrier()));
      const own = failureOf((ranks[1] as GrpcRank).backend.recv(floats(1), 0));
      ranks[1]?.backend.announceLoss(new RangeError('the disk is full'));
      await ranks[1]?.backend.close();
      for (const error of await Promise.all(waiting)) {
        expect(error.code).toBe('LOCKSTEP_PEER_LOST');
        expect(error.message).toBe('rank 1 of group world was lost: it threw RangeError: the disk is full');
        expect((error.cause as Error).name).toBe('RangeError');
      }
      expect((await own).code).toBe('LOCKSTEP_CLOSED');
      await Promise.all([0, 2].map(async (rank) => without[rank]?.barrier()));
    });
  });

  test('a link that breaks in the middle of a large transfer fails all that wait for it', async () => {
    await withGrpcWorld(
      3,
      async (ranks) => {
        const works = backendsOf(ranks).map((backend) => failureOf(backend.allReduce(floats(2 * MIB), 'Sum')));
        await sleepMs(5);
        ranks[2]?.mesh.destroy(new Error('connection reset'));
        const errors = await Promise.all(works.slice(0, 2));
        for (const error of errors) {
          expect(error.code).toBe('LOCKSTEP_PEER_LOST');
          expect(error.context.ranks).toEqual([2]);
          expect(error.message).toContain('connection reset');
        }
        await ranks[2]?.backend.close();
        await works[2];
      },
      { seed: 3 },
    );
  });
});

describe('control messages', () => {
  test('one that is malformed ends its group with an error, not the process', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      const { high, low } = groupWordsOf('world');
      const payload = Buffer.from('{"type":"poison"}');
      const header = {
        kind: FrameKind.Control,
        isPointToPoint: false,
        groupHigh: high,
        groupLow: low,
        call: 0,
        message: 0,
        fingerprintHigh: 0,
        fingerprintLow: 0,
        messageBytes: payload.byteLength,
        payloadBytes: payload.byteLength,
      };
      const waiting = failureOf((b as GrpcRank).backend.barrier());
      await a?.mesh.link(1).send(header, payload);
      const error = await waiting;
      expect(error.code).toBe('LOCKSTEP_INTERNAL');
      expect(error.message).toMatch(/control message is malformed/);
    });
  });

  test('an abort whose reason is a long text reaches the others, shortened', async () => {
    await withGrpcWorld(2, async ([a, b]) => {
      const waiting = failureOf((b as GrpcRank).backend.barrier());
      a?.backend.abort(new Error(`broken: ${'x'.repeat(2 * MIB)}`));
      const error = await waiting;
      expect(error.code).toBe('LOCKSTEP_CLOSED');
      expect(error.message).toMatch(/aborted by rank 0: broken: xxx/);
      expect(error.message.length).toBeLessThan(20_000);
    });
  });
});
