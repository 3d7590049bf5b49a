import fc from 'fast-check';
import { DistributedSampler } from '../../../src/data/distributed-sampler';
import { holds } from '../../helpers/property';

const everyRank = (length: number, worldSize: number, options: { dropLast?: boolean; seed?: number } = {}) =>
  Array.from({ length: worldSize }, (_, rank) => new DistributedSampler(length, { worldSize, rank, ...options }));

/** The one list that the ranks were dealt from. */
function interleave(samplers: readonly DistributedSampler[]): number[] {
  const lists = samplers.map((sampler) => [...sampler]);
  return (lists[0] ?? []).flatMap((_, i) => lists.map((list) => list[i] as number));
}

describe('DistributedSampler', () => {
  test('shuffled, the ranks together hold every sample, and repeat or drop only what does not divide', () => {
    const cases = fc.tuple(fc.integer({ min: 0, max: 60 }), fc.integer({ min: 1, max: 9 }), fc.boolean(), fc.nat(99));
    holds(
      'samples dealt to ranks',
      fc.property(cases, ([length, worldSize, dropLast, seed]) => {
        const samplers = everyRank(length, worldSize, { dropLast, seed });
        const list = interleave(samplers);
        expect(list).toHaveLength(dropLast ? length - (length % worldSize) : Math.ceil(length / worldSize) * worldSize);
        const first = list.slice(0, length);
        expect(new Set(first).size).toBe(first.length);
        expect(first.every((index) => index >= 0 && index < length)).toBe(true);
        list.slice(length).forEach((index, i) => expect(index).toBe(list[i % length]));
        const padding = samplers.reduce((sum, sampler) => sum + sampler.numPadding, 0);
        expect(padding).toBe(Math.max(0, list.length - length));
      }),
    );
  });

  test('the padded indices are the last ones of the ranks that say so', () => {
    const samplers = everyRank(10, 4);
    expect(samplers.map((sampler) => sampler.numPadding)).toEqual([0, 0, 1, 1]);
    const real = samplers.flatMap((sampler) => [...sampler].slice(0, sampler.length - sampler.numPadding));
    expect(real.sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });

  test('an epoch repeats with its number, and differs from other epochs and seeds', () => {
    const sampler = new DistributedSampler(1000, { worldSize: 1, rank: 0, seed: 5 });
    const epoch0 = [...sampler];
    expect([...sampler]).toEqual(epoch0);
    sampler.setEpoch(1);
    const epoch1 = [...sampler];
    expect(epoch1).not.toEqual(epoch0);
    sampler.setEpoch(0);
    expect([...sampler]).toEqual(epoch0);
    const seed6 = new DistributedSampler(1000, { worldSize: 1, rank: 0, seed: 6 });
    expect([...seed6]).not.toEqual(epoch0);
    expect([...seed6]).not.toEqual(epoch1); // seed + 1 is not epoch + 1
  });

  test('a state saved anywhere in an epoch resumes with exactly the rest of it', () => {
    const cases = fc.tuple(fc.integer({ min: 1, max: 40 }), fc.nat(40), fc.nat(3));
    holds(
      'sampler resumed',
      fc.property(cases, ([length, stop, epoch]) => {
        const make = () => new DistributedSampler(length, { worldSize: 2, rank: 1, seed: 3 });
        const whole = make();
        whole.setEpoch(epoch);
        const expected = [...whole];
        const first = make();
        first.setEpoch(epoch);
        const seen: number[] = [];
        const iterator = first[Symbol.iterator]();
        while (seen.length < Math.min(stop, first.length)) seen.push(iterator.next().value as number);

        const second = make();
        second.loadStateDict(JSON.parse(JSON.stringify(first.stateDict())));
        expect(second.stateDict()).toEqual(first.stateDict());
        second.setEpoch(epoch); // as a resumed loop does
        expect([...seen, ...second]).toEqual(expected);
        expect([...second]).toEqual(expected); // and the iteration after it is whole
      }),
    );
  });

  test('a state of a longer list is refused and changes nothing', () => {
    const sampler = new DistributedSampler(8, { worldSize: 2, rank: 0 });
    expect(() => sampler.loadStateDict({ epoch: 1, position: 5 })).toThrow(
      'the state is at index 5, but this rank has 4 an epoch',
    );
    expect(sampler.epoch).toBe(0);
    expect(() => sampler.loadStateDict({ epoch: 1 } as never)).toThrow('options.position');
  });

  test.each([
    [() => new DistributedSampler(-1, { worldSize: 1, rank: 0 }), 'expected the number of samples, 0 to 2^32, got -1'],
    [() => new DistributedSampler([1] as never, { worldSize: 1, rank: 0 }), 'Pass dataset.length'],
    [() => new DistributedSampler(4, { worldSize: 2, rank: 2 }), 'expected a rank from 0 to 1 (worldSize is 2), got 2'],
    [() => new DistributedSampler(4, { worldSize: 0, rank: 0 }), 'options.worldSize'],
    [() => new DistributedSampler(4, { worldSize: 2, rank: 0, suffle: true } as never), "unknown key 'suffle'"],
    [() => new DistributedSampler(4, { worldSize: 2, rank: 0 }).setEpoch(0.5), 'setEpoch: expected a whole number'],
  ])('a wrong argument is named (%#)', (make, message) => {
    expect(make).toThrow(message);
  });
});
