import { Generator } from '../../../src/core/generator';
import { manualSeed } from '../../../src/core/random';
import { collate } from '../../../src/data/collate';
import { DataLoader } from '../../../src/data/data-loader';
import { type Dataset, TensorDataset } from '../../../src/data/dataset';
import { DistributedSampler } from '../../../src/data/distributed-sampler';
import { Tensor } from '../../../src/tensor/tensor';

async function batchesOf<B>(loader: DataLoader<never, B> | AsyncIterable<B>): Promise<B[]> {
  const batches: B[] = [];
  for await (const batch of loader) batches.push(batch);
  return batches;
}

const numbers = (length: number) => Array.from({ length }, (_, i) => i);
const listed = async (loader: AsyncIterable<Tensor>) => (await batchesOf(loader)).map((batch) => batch.toArray());

describe('DataLoader', () => {
  test('goes through a dataset in batches, the last one as large as what is left', async () => {
    const loader = new DataLoader(numbers(5), { batchSize: 2 });
    expect(loader.length).toBe(3);
    expect(await listed(loader)).toEqual([[0, 1], [2, 3], [4]]);
    const whole = new DataLoader(numbers(5), { batchSize: 2, dropLast: true });
    expect(whole.length).toBe(2);
    expect(await listed(whole)).toEqual([
      [0, 1],
      [2, 3],
    ]);
    expect(await listed(new DataLoader(numbers(2)))).toEqual([[0], [1]]);
    expect(await listed(new DataLoader<number>([], { batchSize: 4 }))).toEqual([]);
  });

  test('shuffles anew at each iteration, from its generator or that of the context', async () => {
    const options = { batchSize: 100, shuffle: true };
    const loader = new DataLoader(numbers(100), { ...options, generator: new Generator(1) });
    const [first, second] = [await listed(loader), await listed(loader)];
    expect(first).not.toEqual(second);
    expect((first[0] as number[]).toSorted((a, b) => a - b)).toEqual(numbers(100));
    expect(await listed(new DataLoader(numbers(100), { ...options, generator: new Generator(1) }))).toEqual(first);
    manualSeed(9);
    const fromContext = await listed(new DataLoader(numbers(100), options));
    manualSeed(9);
    expect(await listed(new DataLoader(numbers(100), options))).toEqual(fromContext);
  });

  test('takes its order from a sampler, epoch by epoch', async () => {
    const sampler = new DistributedSampler(10, { worldSize: 3, rank: 1, seed: 4 });
    const loader = new DataLoader(numbers(10), { batchSize: 3, sampler });
    expect(loader.length).toBe(2);
    const epoch0 = await listed(loader);
    expect(epoch0.flat()).toEqual([...sampler]);
    sampler.setEpoch(1);
    expect(await listed(loader)).not.toEqual(epoch0);
  });

  test('with a sampler, resumes after the last batch that was handed out', async () => {
    const make = () => {
      const sampler = new DistributedSampler(20, { worldSize: 2, rank: 0 });
      return { sampler, loader: new DataLoader(numbers(20), { batchSize: 3, sampler }) };
    };
    const expected = await listed(make().loader);
    for (let taken = 1; taken <= expected.length; taken++) {
      const { sampler, loader } = make();
      let state = sampler.stateDict();
      let seen = 0;
      for await (const _batch of loader) {
        state = sampler.stateDict();
        if (++seen === taken) break;
      }
      const resumed = make();
      resumed.sampler.loadStateDict(state);
      expect(await listed(resumed.loader)).toEqual(expected.slice(taken));
    }
  });

  test('reads datasets that are objects, async ones too, and uses getBatch where there is one', async () => {
    const slow: Dataset<number> = { length: 3, get: async (index) => Promise.resolve(index * 10) };
    expect(await listed(new DataLoader(slow, { batchSize: 2 }))).toEqual([[0, 10], [20]]);
    const asked: unknown[] = [];
    const fast: Dataset<number> = {
      length: 3,
      get: () => NaN,
      getBatch: (indices) => {
        asked.push(indices);
        return Tensor.from([...indices]);
      },
    };
    expect(await listed(new DataLoader(fast, { batchSize: 2 }))).toEqual([[0, 1], [2]]);
    expect(asked).toEqual([[0, 1], [2]]);
  });

  test('a collate of your own makes the batches', async () => {
    const loader = new DataLoader(['a', 'b', 'c'], { batchSize: 2, collate: (samples) => samples.join('') });
    expect(await batchesOf(loader)).toEqual(['ab', 'c']);
    const dataset = new TensorDataset([Tensor.from([1, 2])]);
    const sums = new DataLoader(dataset, { batchSize: 2, collate: (samples) => samples.map(([x]) => x?.item()) });
    expect(await batchesOf(sums)).toEqual([[1, 2]]);
  });

  test('batches need no gradient, also where samples do', async () => {
    const x = Tensor.ones([2, 3], { requiresGrad: true });
    for (const loader of [
      new DataLoader(new TensorDataset([x]), { batchSize: 2 }),
      new DataLoader([[x.slice(0, 0, 1)], [x.slice(0, 1, 2)]], { batchSize: 2 }),
    ]) {
      for await (const [batch] of loader) expect(batch?.requiresGrad).toBe(false);
    }
  });

  test.each([
    [() => new DataLoader(numbers(2), { batchSize: 0 }), 'new DataLoader: options.batchSize'],
    [() => new DataLoader(numbers(2), { batchsize: 2 } as never), "unknown key 'batchsize'"],
    [
      () => new DataLoader(numbers(2), { shuffle: true, sampler: [0] }),
      'shuffle and sampler are given, but the sampler decides the order. Pass { shuffle: true } to the sampler',
    ],
    [() => new DataLoader(numbers(2), { sampler: 3 as never }), 'options.sampler: expected an iterable of indices'],
    [() => new DataLoader({ length: 3 } as never), 'expected an array of samples, or an object with length and get(index)'],
    [() => new DataLoader(undefined as never), 'expected an array of samples'],
    [() => new DataLoader(numbers(2), { sampler: (function* () {})() }).length, 'the sampler has no length'],
  ])('a wrong argument is named (%#)', (make, message) => {
    expect(make).toThrow(message);
  });

  test.each([5, -1, 0.5, NaN])('an index of %p from the sampler is refused', async (index) => {
    await expect(batchesOf(new DataLoader(numbers(5), { sampler: [index] }))).rejects.toThrow(
      `the sampler gave index ${index}, but the dataset has 5 samples. Make the sampler for dataset.length`,
    );
  });
});

describe('TensorDataset', () => {
  const x = Tensor.from([
    [1, 2],
    [3, 4],
    [5, 6],
  ]);
  const labels = Tensor.from([7, 8, 9], undefined, { dtype: 'int32' });

  test('samples are slices and batches are rows, with their dtypes', async () => {
    const dataset = new TensorDataset([x, labels]);
    expect(dataset.length).toBe(3);
    expect(dataset.get(1).map((tensor) => tensor.toArray())).toEqual([[3, 4], 8]);
    const [[images, classes] = []] = await batchesOf(new DataLoader(dataset, { sampler: [2, 0], batchSize: 2 }));
    expect(images?.toArray()).toEqual([
      [5, 6],
      [1, 2],
    ]);
    expect(classes).toEqual(Tensor.from([9, 7], undefined, { dtype: 'int32' }));
  });

  test('batches are the same as collated samples', async () => {
    const dataset = new TensorDataset([x, labels]);
    const bySample: Dataset<ReturnType<typeof dataset.get>> = { length: 3, get: (index) => dataset.get(index) };
    expect(await batchesOf(new DataLoader(dataset, { batchSize: 2 }))).toEqual(
      await batchesOf(new DataLoader(bySample, { batchSize: 2 })),
    );
  });

  test.each([
    [() => new TensorDataset([]), 'expected a list of tensors with one sample a row, all of one length, got none'],
    [() => new TensorDataset([x, Tensor.zeros([2])]), 'got [3, 2], [2]'],
    [() => new TensorDataset([Tensor.zeros([])]), 'got []'],
    [() => new TensorDataset([x, [1, 2, 3] as never]), 'got [3, 2], object'],
    [() => new TensorDataset(x as never), 'got none'],
  ])('a wrong argument is named (%#)', (make, message) => {
    expect(make).toThrow(message);
  });
});

describe('collate', () => {
  test('stacks tensors, joins numbers, and goes into arrays and objects', () => {
    const sample = (value: number) => ({ image: Tensor.full([2], value), pair: [value, { id: value }] as const });
    const batch = collate([sample(1), sample(2)]);
    expect(batch.image.toArray()).toEqual([
      [1, 1],
      [2, 2],
    ]);
    expect(batch.pair[0]).toEqual(Tensor.from([1, 2]));
    expect(batch.pair[1].id).toEqual(Tensor.from([1, 2]));
  });

  test.each([
    [['a', 'b'], 'got String at sample. Pass a collate function of your own'],
    [[1, Tensor.zeros([1])], 'at sample'],
    [[[1], [1, 2]], 'at sample'],
    [[{ x: [null] }, { x: [null] }], 'got Null at sample.x[0]'],
    [[[Tensor.zeros([1])], [Tensor.zeros([2])]], 'collate: at sample[0]: stack: shapes [1] and [2] differ'],
  ])('samples that do not join are named (%#)', (samples, message) => {
    expect(() => collate(samples as unknown[])).toThrow(message);
  });
});
