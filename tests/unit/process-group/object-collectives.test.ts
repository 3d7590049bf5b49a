import { WORLD_SIZES, onRanks, rejectionOf } from './worlds';

const samples: readonly unknown[] = [
  undefined,
  null,
  0,
  -0,
  'grüße',
  123456789012345678901234567890n,
  { nested: [1, { two: new Map([['three', new Set([4])]]) }] },
  new Date(86_400_000),
  Float64Array.of(1.5, NaN),
  'x'.repeat(100_000),
];

/** A value whose size depends on the rank. */
function ofRank(rank: number): unknown {
  return { rank, text: 'ab'.repeat(rank * 50) };
}

describe.each(WORLD_SIZES)('objects on %i ranks', (size) => {
  const ranks = Array.from({ length: size }, (_unused, rank) => rank);

  test('broadcastObject gives a copy of the source`s value, on the source too', async () => {
    await onRanks(size, async (group) => {
      for (const src of ranks) expect(await group.broadcastObject(ofRank(group.rank), src)).toEqual(ofRank(src));
      for (const sample of samples) {
        const value = await group.broadcastObject(group.rank === 0 ? sample : 'not looked at');
        expect(value).toEqual(sample);
        if (typeof sample === 'object' && sample !== null) expect(value).not.toBe(sample);
      }
    });
  });

  test('allGatherObjects gives all values by rank, whatever their sizes', async () => {
    await onRanks(size, async (group) => {
      expect(await group.allGatherObjects(ofRank(group.rank))).toEqual(ranks.map(ofRank));
      expect(await group.allGatherObjects(undefined)).toEqual(ranks.map(() => undefined));
    });
  });

  test('gatherObjects gives them on the destination only', async () => {
    await onRanks(size, async (group) => {
      for (const dst of ranks) {
        const gathered = await group.gatherObjects(ofRank(group.rank), dst);
        expect(gathered).toEqual(group.rank === dst ? ranks.map(ofRank) : undefined);
      }
    });
  });

  test('scatterObjects deals the source`s list out', async () => {
    await onRanks(size, async (group) => {
      for (const src of ranks) {
        const list = group.rank === src ? ranks.map((rank) => ofRank(rank + 1)) : undefined;
        expect(await group.scatterObjects(list, src)).toEqual(ofRank(group.rank + 1));
      }
    });
  });

  test('typed arrays of different ranks do not share memory, so that one can be transferred to a worker', async () => {
    await onRanks(size, async (group) => {
      const all = await group.allGatherObjects(new Float64Array(1000).fill(group.rank));
      structuredClone(all[0], { transfer: [(all[0] as Float64Array).buffer as ArrayBuffer] });
      expect(all.map((array) => array.length)).toEqual(ranks.map((rank) => (rank === 0 ? 0 : 1000)));
    });
  });
});

describe('values that cannot be cloned', () => {
  const broken = { callback: () => 1 };

  test.each([
    ['broadcastObject', 2],
    ['allGatherObjects', 2],
    ['gatherObjects', 2],
    ['scatterObjects', 1],
  ] as const)(
    '%s: every rank gets the same error, which names the rank, and the group lives on',
    async (name, culprit) => {
      const messages = await onRanks(3, async (group) => {
        const value = group.rank === culprit ? broken : 'fine';
        const calls = {
          broadcastObject: () => group.broadcastObject(value, culprit),
          allGatherObjects: () => group.allGatherObjects(value),
          gatherObjects: () => group.gatherObjects(value, 0),
          scatterObjects: () => group.scatterObjects(group.rank === culprit ? ['a', broken, 'c'] : undefined, culprit),
        };
        const error = await rejectionOf(calls[name]());
        expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { op: name, ranks: [culprit] } });
        expect(await group.allGatherObjects(group.rank)).toEqual([0, 1, 2]);
        return error.message;
      });
      messages.forEach((message, rank) => {
        expect(message).toMatch(
          new RegExp(`^${name} on rank ${rank} of group world: what rank ${culprit} passed cannot be cloned: `),
        );
        expect(message).toContain('() => 1 could not be cloned. Values travel by v8.serialize: pass plain data');
      });
    },
  );

  test('a getter that throws counts as well', async () => {
    const messages = await onRanks(2, async (group) => {
      const value = {
        get loss(): number {
          throw new Error('no loss yet');
        },
      };
      return (await rejectionOf(group.allGatherObjects(group.rank === 1 ? value : 0))).message;
    });
    for (const message of messages) expect(message).toContain('what rank 1 passed cannot be cloned: no loss yet');
  });

  test('a list for scatterObjects that is too short', async () => {
    const messages = await onRanks(3, async (group) => {
      const error = await rejectionOf(group.scatterObjects(group.rank === 0 ? ['a', 'b'] : undefined));
      await group.barrier();
      return error.message;
    });
    for (const message of messages) {
      expect(message).toContain(
        'what rank 0 passed is a list of 2, expected a list with one entry for each of the 3 ranks',
      );
    }
  });

  test('no list on the source of scatterObjects', async () => {
    const [message] = await onRanks(2, async (group) => (await rejectionOf(group.scatterObjects(undefined))).message);
    expect(message).toContain('what rank 0 passed is a value of type undefined');
  });

  test('an unknown root is refused on every rank', async () => {
    await onRanks(2, async (group) => {
      expect((await rejectionOf(group.gatherObjects(1, 2))).message).toMatch(
        /gatherObjects .*dst is 2, expected a rank/,
      );
      expect((await rejectionOf(group.scatterObjects([1, 2], -1))).message).toMatch(/scatterObjects .*src is -1/);
      await group.barrier();
    });
  });
});
