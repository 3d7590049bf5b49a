import { DTYPES } from '../../../src/core/dtype';
import { expectedFill } from '../expected';
import { expectEqual, expectFailure, expectSuccess, expectValues } from '../expectations';
import { LARGE_COUNT, type Property, type Worlds } from '../property';

const severalRanks = (worlds: Worlds): number[] => worlds.sizes.filter((size) => size > 1);

export const pointToPointProperties: readonly Property[] = [
  {
    title: 'recv holds what was sent, and the sender’s buffer is left alone: every dtype, none to many elements',
    async check(worlds) {
      const cases = [
        ...DTYPES.flatMap((dtype) => [0, 1, 101].map((count) => ({ dtype, count }))),
        { dtype: 'float32' as const, count: LARGE_COUNT },
      ];
      const byRank = await worlds.results(2, 'transfer', { cases });
      cases.forEach(({ dtype, count }, index) => {
        const want = expectedFill(2, dtype, 'counted', 0, 0, count);
        byRank.forEach((buffers, rank) => expectValues(`${count} ${dtype}, rank ${rank}`, buffers[index], want));
      });
    },
  },
  {
    title: 'messages of a tag arrive in the order in which they were sent',
    async check(worlds) {
      const sends = Array.from({ length: 50 }, (_unused, i) => [3, i] as const);
      const byRank = await worlds.results(2, 'tagged', { sends, receives: sends.map(() => 3) });
      expectEqual(
        'received',
        byRank[1],
        sends.map(([, value]) => value),
      );
    },
  },
  {
    title: 'receives of a tag that are posted first are filled in the order in which they were posted',
    async check(worlds) {
      const values = Array.from({ length: 20 }, (_unused, i) => i * i);
      const byRank = await worlds.results(2, 'receivesFirst', { values });
      expectEqual('received', byRank[1], values);
    },
  },
  {
    title: 'tags are taken apart: the receiver may take them in another order than they were sent',
    async check(worlds) {
      const sends = [
        [7, 70],
        [8, 80],
        [7, 71],
        [8, 81],
        [0, 1],
      ] as const;
      const byRank = await worlds.results(2, 'tagged', { sends, receives: [0, 8, 7, 8, 7] });
      expectEqual('received', byRank[1], [1, 80, 70, 81, 71]);
    },
  },
  {
    title: 'send is a rendezvous: it does not complete before the receiver asks for the message',
    async check(worlds) {
      const byRank = await worlds.results(2, 'rendezvous', undefined);
      expectEqual('completed before, after', byRank[0], [false, true]);
    },
  },
  {
    title: 'a ring of sends and receives that are launched together goes round',
    async check(worlds) {
      for (const size of severalRanks(worlds)) {
        const byRank = await worlds.results(size, 'ring', undefined);
        expectEqual(
          `ring of ${size}`,
          byRank,
          byRank.map((_unused, rank) => (rank + size - 1) % size),
        );
      }
    },
  },
  {
    title: 'batch: a ring in which every rank lists its receive first goes round',
    async check(worlds) {
      for (const size of severalRanks(worlds)) {
        for (const count of [0, 1, 1009]) {
          const byRank = await worlds.results(size, 'batchRing', { count });
          byRank.forEach((buffer, rank) => {
            const source = (rank + size - 1) % size;
            const want = expectedFill(size, 'float32', 'counted', source, 0, count);
            expectValues(`batch ring of ${size}, rank ${rank}`, buffer, want);
          });
        }
      }
    },
  },
  {
    title: 'batch: all pairs exchange several messages and tags at once, each in its own order',
    async check(worlds) {
      for (const size of severalRanks(worlds)) {
        const byRank = await worlds.results(size, 'batchAllPairs', undefined);
        byRank.forEach((values, rank) => {
          const peers = byRank.map((_unused, peer) => peer).filter((peer) => peer !== rank);
          const want = peers.flatMap((peer) => [70, 71, 80, 81].map((message) => peer * 1000 + rank * 100 + message));
          expectEqual(
            `all pairs of ${size}, rank ${rank}`,
            values,
            want.sort((a, b) => a - b),
          );
        });
      }
    },
  },
  {
    title: 'batch: a batch on one rank meets single calls on the other, in order',
    async check(worlds) {
      const byRank = await worlds.results(2, 'batchMeetsSingles', undefined);
      expectEqual('received', byRank, [[3], [1, 2]]);
    },
  },
  {
    title: 'batch: one of nothing completes',
    async check(worlds) {
      for (const ending of await worlds.results(2, 'emptyBatch', undefined)) expectSuccess('batch([])', ending);
    },
  },
  {
    title: 'messages of two groups between the same ranks with the same tag do not mix',
    async check(worlds) {
      for (const size of [2, 3]) {
        const byRank = await worlds.results(size, 'groupsDoNotMix', undefined);
        expectEqual('received', byRank[1], [2, 1]);
      }
    },
  },
  ...(['single calls', 'batches'] as const).map((how): Property => ({
    title: `${how}: a receive of another length or dtype than was sent fails on both ranks and ends the group`,
    async check(worlds) {
      const cases = [
        { send: { dtype: 'float32', count: 4 }, recv: { dtype: 'float32', count: 6 } },
        { send: { dtype: 'float32', count: 6 }, recv: { dtype: 'float32', count: 4 } },
        { send: { dtype: 'float32', count: 4 }, recv: { dtype: 'int32', count: 4 } },
        { send: { dtype: 'float16', count: 4 }, recv: { dtype: 'bfloat16', count: 4 } },
      ] as const;
      for (const { send, recv } of cases) {
        const byRank = await worlds.results(2, 'disagree', { send, recv, inBatch: how === 'batches' });
        byRank.forEach(({ first, later, world }, rank) => {
          const where = `send ${JSON.stringify(send)}, recv ${JSON.stringify(recv)}, rank ${rank}`;
          const says = [
            new RegExp(`send.*${send.dtype}.*${send.count}`),
            new RegExp(`recv.*${recv.dtype}.*${recv.count}`),
          ];
          expectFailure(where, first, { code: 'LOCKSTEP_MISMATCH', says });
          expectFailure(`${where}, later`, later, { code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_MISMATCH' } });
          expectEqual(`${where}, the world`, world, 2);
        });
      }
    },
  })),
];
