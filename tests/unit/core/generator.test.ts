import fc from 'fast-check';
import { holds } from '../../helpers/property';
import { InvalidArgumentError } from '../../../src/core/errors';
import { Generator } from '../../../src/core/generator';

const MASK = 0xffff_ffffn;

/** Philox4x32-10 as the paper defines it, in big integers. */
function philox(counter: readonly bigint[], key: readonly bigint[]): bigint[] {
  let [c0, c1, c2, c3] = counter as [bigint, bigint, bigint, bigint];
  let [k0, k1] = key as [bigint, bigint];
  for (let round = 0; round < 10; round++) {
    const product0 = 0xd2511f53n * c0;
    const product1 = 0xcd9e8d57n * c2;
    [c0, c1, c2, c3] = [(product1 >> 32n) ^ c1 ^ k0, product1 & MASK, (product0 >> 32n) ^ c3 ^ k1, product0 & MASK];
    k0 = (k0 + 0x9e3779b9n) & MASK;
    k1 = (k1 + 0xbb67ae85n) & MASK;
  }
  return [c0, c1, c2, c3];
}

const hex = (words: readonly (bigint | number)[]): string =>
  words.map((word) => word.toString(16).padStart(8, '0')).join(' ');

describe('Philox4x32-10', () => {
  test('the arithmetic in this test gives the known answers of the authors', () => {
    expect(hex(philox([0n, 0n, 0n, 0n], [0n, 0n]))).toBe('6627e8d5 e169c58d bc57ac4c 9b00dbd8');
    expect(hex(philox([MASK, MASK, MASK, MASK], [MASK, MASK]))).toBe('408f276d 41c83b0e a20bc7c6 6d5451fd');
    expect(hex(philox([0x243f6a88n, 0x85a308d3n, 0x13198a2en, 0x03707344n], [0xa4093822n, 0x299f31d0n]))).toBe(
      'd16cfe09 94fdcceb 5001e420 24126ea1',
    );
  });

  test('seed 0 begins with the known answer', () => {
    const generator = new Generator(0);
    expect(hex(Array.from({ length: 4 }, () => generator.nextUint32()))).toBe('6627e8d5 e169c58d bc57ac4c 9b00dbd8');
  });

  test('the words at any position of any seed are those of the definition', () => {
    holds(
      'Philox words',
      fc.property(fc.maxSafeNat(), fc.maxSafeNat(), (seed, position) => {
        const generator = new Generator(0);
        generator.setState({ seed, position });
        const block = BigInt(Math.floor(position / 4));
        const key = BigInt(seed);
        const words = philox([block & MASK, block >> 32n, 0n, 0n], [key & MASK, key >> 32n]);
        expect(BigInt(generator.nextUint32())).toBe(words[position % 4]);
      }),
    );
  });
});

describe('state', () => {
  test('saved anywhere and restored into any generator repeats what follows', () => {
    holds(
      'generator state',
      fc.property(fc.maxSafeNat(), fc.nat(50), fc.nat(20), (seed, before, after) => {
        const generator = new Generator(seed);
        for (let i = 0; i < before; i++) generator.nextUint32();
        const state = JSON.parse(JSON.stringify(generator.getState())) as ReturnType<Generator['getState']>;
        const first = Array.from({ length: after }, () => generator.nextUint32());
        const other = new Generator(1);
        other.nextUint32();
        other.setState(state);
        expect(Array.from({ length: after }, () => other.nextUint32())).toEqual(first);
        expect(other.getState()).toEqual(generator.getState());
      }),
    );
  });

  test('covers every kind of draw', () => {
    const generator = new Generator(5);
    const draw = (): unknown => [
      generator.nextFloat(),
      generator.nextDouble(),
      generator.nextNormal(),
      generator.nextBelow(10),
      generator.permutation(7),
    ];
    draw();
    const state = generator.getState();
    const first = draw();
    generator.setState(state);
    expect(draw()).toEqual(first);
  });

  test.each([
    { seed: -1, position: 0 },
    { seed: 0, position: 0.5 },
    { seed: 1, position: -1 },
    { seed: NaN, position: 0 },
    { seed: 2 ** 53, position: 0 },
  ])('%p is refused and changes nothing', (state) => {
    const generator = new Generator(3);
    generator.nextUint32();
    expect(() => generator.setState(state)).toThrow(InvalidArgumentError);
    expect(generator.getState()).toEqual({ seed: 3, position: 1 });
  });
});

test.each([-1, 0.5, NaN, Infinity, 2 ** 53, '3'])('a seed of %p is refused', (seed) => {
  expect(() => new Generator(seed as number)).toThrow(InvalidArgumentError);
  expect(() => new Generator(seed as number)).toThrow(`seed: expected a whole number from 0 to 2^53 - 1, got ${seed}`);
});

test('different seeds give different numbers', () => {
  const firsts = [0, 1, 2, 2 ** 32, 2 ** 32 + 1, 2 ** 53 - 1].map((seed) => new Generator(seed).nextUint32());
  expect(new Set(firsts).size).toBe(firsts.length);
});

describe('distributions', () => {
  const draws = 20_000;
  // Bounds are five standard deviations: with a fixed seed they hold or do not, once and for all.
  const mean = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / values.length;

  test.each([
    ['nextFloat', (generator: Generator) => generator.nextFloat()],
    ['nextDouble', (generator: Generator) => generator.nextDouble()],
  ])('%s is uniform from 0 to below 1', (_name, draw) => {
    const generator = new Generator(11);
    const values = Array.from({ length: draws }, () => draw(generator));
    expect(Math.min(...values)).toBeGreaterThanOrEqual(0);
    expect(Math.max(...values)).toBeLessThan(1);
    expect(Math.abs(mean(values) - 0.5)).toBeLessThan(5 * Math.sqrt(1 / 12 / draws));
    const tenths = Array.from(
      { length: 10 },
      (_unused, i) => values.filter((value) => Math.floor(value * 10) === i).length,
    );
    for (const tenth of tenths) expect(Math.abs(tenth - draws / 10)).toBeLessThan(5 * Math.sqrt(draws * 0.09));
  });

  test('nextFloat is exact in float32', () => {
    const generator = new Generator(12);
    for (let i = 0; i < 1000; i++) {
      const value = generator.nextFloat();
      expect(Math.fround(value)).toBe(value);
    }
  });

  test('nextNormal has mean 0, variance 1, symmetric tails and no infinity', () => {
    const generator = new Generator(13);
    const values = Array.from({ length: draws }, () => generator.nextNormal());
    expect(values.every(Number.isFinite)).toBe(true);
    expect(Math.abs(mean(values))).toBeLessThan(5 / Math.sqrt(draws));
    expect(Math.abs(mean(values.map((value) => value * value)) - 1)).toBeLessThan(5 * Math.sqrt(2 / draws));
    const beyondTwo = values.filter((value) => Math.abs(value) > 2).length / draws;
    expect(Math.abs(beyondTwo - 0.0455)).toBeLessThan(5 * Math.sqrt((0.0455 * 0.9545) / draws));
  });

  test('nextBelow stays below its limit and reaches every number', () => {
    const generator = new Generator(14);
    for (const limit of [1, 2, 3, 7, 10]) {
      const values = Array.from({ length: 400 }, () => generator.nextBelow(limit));
      expect([...new Set(values)].sort((a, b) => a - b)).toEqual(Array.from({ length: limit }, (_unused, i) => i));
    }
    for (let i = 0; i < 100; i++) expect(generator.nextBelow(2 ** 32)).toBeLessThan(2 ** 32);
  });

  test('nextBelow does not favour small numbers where the limit does not divide 2^32', () => {
    const generator = new Generator(15);
    const limit = 3 * 2 ** 30; // by plain remainder the lowest third would come twice as often
    const low = Array.from({ length: draws }, () => generator.nextBelow(limit)).filter(
      (value) => value < 2 ** 30,
    ).length;
    expect(Math.abs(low - draws / 3)).toBeLessThan(5 * Math.sqrt((draws * 2) / 9));
  });

  test.each([0, -1, 1.5, NaN, 2 ** 32 + 1])('nextBelow(%p) is refused', (limit) => {
    expect(() => new Generator(0).nextBelow(limit)).toThrow(InvalidArgumentError);
    expect(() => new Generator(0).nextBelow(limit)).toThrow('from 1 to 2^32');
  });

  test('permutation(n) holds each of 0..n-1 once, whatever n and seed', () => {
    holds(
      'permutation',
      fc.property(fc.maxSafeNat(), fc.nat(40), (seed, length) => {
        const order = new Generator(seed).permutation(length);
        expect([...order].sort((a, b) => a - b)).toEqual(Array.from({ length }, (_unused, i) => i));
      }),
    );
  });

  test('every permutation of three comes about equally often', () => {
    const generator = new Generator(16);
    const counts = new Map<string, number>();
    for (let i = 0; i < 6000; i++) {
      const order = generator.permutation(3).join('');
      counts.set(order, (counts.get(order) ?? 0) + 1);
    }
    expect(counts.size).toBe(6);
    for (const times of counts.values()) expect(Math.abs(times - 1000)).toBeLessThan(5 * Math.sqrt(6000 * (5 / 36)));
  });

  test.each([-1, 1.5, NaN])('permutation(%p) is refused', (length) => {
    expect(() => new Generator(0).permutation(length)).toThrow(InvalidArgumentError);
    expect(() => new Generator(0).permutation(length)).toThrow('permutation: expected a whole number');
  });
});
