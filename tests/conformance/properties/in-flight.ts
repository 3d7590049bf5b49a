import { count } from '../../helpers/counts';
import { expectEqual } from '../expectations';
import type { Property } from '../property';

export const inFlightProperties: readonly Property[] = [
  {
    title: 'many rounds of collectives, back to back, are all right',
    async check(worlds) {
      const rounds = count('conformance: rounds of collectives, back to back', 60, 200);
      for (const size of worlds.sizes) {
        const byRank = await worlds.results(size, 'repeated', { rounds });
        expectEqual(`on ${size} ranks`, byRank.flat(), []);
      }
    },
  },
  {
    title: 'many collectives launched before any is awaited are all right, in whatever order they are awaited',
    async check(worlds) {
      for (const size of worlds.sizes) {
        for (const awaitReversed of [false, true]) {
          const byRank = await worlds.results(size, 'manyInFlight', { count: 60, awaitReversed });
          expectEqual(`on ${size} ranks`, byRank.flat(), []);
        }
      }
    },
  },
  {
    title: 'a Work is not completed before all ranks have joined, and is afterwards',
    async check(worlds) {
      for (const size of [2, 3, 4]) {
        const byRank = await worlds.results(size, 'completion', undefined);
        expectEqual(`on ${size} ranks: at launch, without the last, at the end`, byRank[0], [false, false, true]);
      }
    },
  },
  {
    title: 'a Work may be awaited several times, before and after it settles',
    async check(worlds) {
      for (const size of [1, 3]) {
        const byRank = await worlds.results(size, 'awaitedTwice', undefined);
        expectEqual(
          `on ${size} ranks`,
          byRank,
          byRank.map(() => [size]),
        );
      }
    },
  },
];
