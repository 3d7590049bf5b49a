import { DistributedSampler } from '../../src/data/distributed-sampler';
import { readGolden } from '../helpers/golden';

interface SamplerCase {
  readonly length: number;
  readonly world: number;
  readonly dropLast: boolean;
  readonly samplesPerRank: number;
  readonly totalSize: number;
}

interface SamplerFile {
  readonly cases: readonly (SamplerCase & { readonly ranks: readonly (readonly number[])[] })[];
  readonly shuffled: readonly SamplerCase[];
}

const golden = readGolden<SamplerFile>('sampler.json');

const samplersOf = ({ length, world, dropLast }: SamplerCase, shuffle: boolean, seed = 0) =>
  Array.from(
    { length: world },
    (_, rank) => new DistributedSampler(length, { worldSize: world, rank, dropLast, shuffle, seed }),
  );

const title = (golden: SamplerCase) =>
  `${golden.length} samples over ${golden.world}${golden.dropLast ? ', dropLast' : ''}`;

describe('DistributedSampler deals like torch', () => {
  test.each(golden.cases.map((c) => [title(c), c] as const))('unshuffled: %s', (_title, expected) => {
    const samplers = samplersOf(expected, false);
    expect(samplers.map((sampler) => [...sampler])).toEqual(expected.ranks);
    samplers.forEach((sampler) => {
      expect(sampler.length).toBe(expected.samplesPerRank);
      expect(sampler.totalSize).toBe(expected.totalSize);
    });
  });

  test.each(golden.shuffled.map((c) => [title(c), c] as const))('shuffled: %s', (_title, expected) => {
    const lists = samplersOf(expected, true).map((sampler) => [...sampler]);
    expect(lists.map((list) => list.length)).toEqual(lists.map(() => expected.samplesPerRank));
    const list = Array.from({ length: expected.totalSize }, (_, i) => {
      return lists[i % expected.world]?.[Math.floor(i / expected.world)] as number;
    });
    const first = list.slice(0, expected.length);
    expect([...first].sort((a, b) => a - b)).toEqual(
      expected.dropLast ? [...new Set(first)].sort((a, b) => a - b) : first.map((_, i) => i),
    );
    list.slice(expected.length).forEach((index, i) => expect(index).toBe(list[i % expected.length]));
    expect(samplersOf(expected, true).map((sampler) => [...sampler])).toEqual(lists);
    if (expected.totalSize >= 8) {
      expect(samplersOf(expected, true, 1).map((sampler) => [...sampler])).not.toEqual(lists);
    }
  });
});
