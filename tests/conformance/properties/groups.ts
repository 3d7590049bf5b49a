import { expectEqual, expectValues } from '../expectations';
import type { Property, Worlds } from '../property';
import type { Membership } from '../programs/groups';

const ranksOf = (size: number): number[] => Array.from({ length: size }, (_unused, rank) => rank);

/** What every rank must see of the groups, all identities apart. */
function checkMemberships(
  where: string,
  byRank: readonly (readonly (Membership | null)[])[],
  groups: readonly (readonly number[])[],
): void {
  groups.forEach((members, index) => {
    const identities = new Set<string | null>();
    byRank.forEach((memberships, worldRank) => {
      const got = memberships[index] ?? null;
      const rank = members.indexOf(worldRank);
      if (got !== null) identities.add(got.identity);
      const want = rank < 0 ? null : { rank, size: members.length, identity: got?.identity ?? 'an identity', members };
      expectEqual(`${where}: group [${members.join()}] on rank ${worldRank}`, got, want);
    });
    expectEqual(`${where}: identities of group [${members.join()}]`, identities.size, members.length > 0 ? 1 : 0);
  });
  const identities = byRank.flatMap((memberships) => memberships.flatMap((seen) => seen?.identity ?? []));
  expectEqual(
    `${where}: different identities`,
    new Set(identities).size,
    groups.filter((ranks) => ranks.length > 0).length,
  );
}

async function checkSplit(worlds: Worlds, size: number, groups: readonly (readonly number[])[]): Promise<void> {
  const where = `on ${size} ranks`;
  checkMemberships(where, await worlds.results(size, 'split', { groups }), groups);
  checkMemberships(`${where}, together`, await worlds.results(size, 'splitTogether', { groups }), groups);
}

export const groupProperties: readonly Property[] = [
  {
    title: 'every rank knows its rank, the size, and what its backend can do',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const byRank = await worlds.results(size, 'describe', undefined);
        byRank.forEach((got, rank) => {
          const { name } = byRank[0] as { name: string };
          expectEqual(`rank ${rank} of ${size}`, got, { rank, size, name, capabilities: worlds.capabilities });
        });
      }
    },
  },
  {
    title: 'split: groups that cover the world apart, of one rank each, and of all',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const even = ranksOf(size).filter((rank) => rank % 2 === 0);
        const odd = ranksOf(size).filter((rank) => rank % 2 === 1);
        await checkSplit(worlds, size, [
          even,
          ...(size > 1 ? [odd] : []),
          ranksOf(size),
          ...ranksOf(size).map((rank) => [rank]),
        ]);
      }
    },
  },
  {
    title: 'split: the ranks keep the order given',
    async check(worlds) {
      for (const size of worlds.sizes)
        await checkSplit(worlds, size, [ranksOf(size).reverse(), [...ranksOf(size).slice(1), 0]]);
    },
  },
  {
    title: 'split: the same ranks twice are two groups with identities of their own',
    check: (worlds) =>
      checkSplit(worlds, 3, [
        [0, 1, 2],
        [0, 1, 2],
        [2, 0],
        [2, 0],
      ]),
  },
  {
    title: 'split: overlapping groups',
    check: (worlds) =>
      checkSplit(worlds, 4, [
        [0, 1, 2],
        [1, 2, 3],
        [3, 0],
        [0, 2],
      ]),
  },
  {
    title: 'split: a group of a group numbers its own ranks',
    async check(worlds) {
      // outer is [3, 1, 0]: its ranks 2 and 1 are ranks 0 and 1 of the world
      const byRank = await worlds.results(4, 'nested', { outer: [3, 1, 0], inner: [2, 1] });
      checkMemberships('nested', byRank, [
        [3, 1, 0],
        [0, 1],
      ]);
    },
  },
  {
    title: 'collectives of the world and of overlapping groups in flight together do not mix',
    async check(worlds) {
      const groups = [
        [0, 1],
        [2, 3],
        [0, 2],
        [3, 1],
        [0, 1, 2, 3],
      ];
      for (const awaitReversed of [false, true]) {
        const rounds = 20;
        const byRank = await worlds.results(4, 'collectivesInFlight', { groups, rounds, awaitReversed });
        byRank.forEach((results, rank) => {
          results.forEach((buffers, round) => {
            [ranksOf(4), ...groups].forEach((members, index) => {
              if (!members.includes(rank)) return expectEqual(`rank ${rank} is outside`, buffers[index] ?? null, null);
              const total = members.reduce((sum, member) => sum + 10 ** index * (member + 1) + round, 0);
              expectValues(`round ${round}, group [${members.join()}], rank ${rank}`, buffers[index], [total]);
            });
          });
        });
      }
    },
  },
  {
    title: 'closing a group leaves the world and later groups as they are',
    async check(worlds) {
      for (const size of worlds.sizes) {
        const byRank = await worlds.results(size, 'closeGroup', undefined);
        expectEqual(
          `on ${size} ranks`,
          byRank,
          ranksOf(size).map(() => [size, size]),
        );
      }
    },
  },
];
