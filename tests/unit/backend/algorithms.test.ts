import { allGatherSchedule } from '../../../src/backend/algorithms/all-gather';
import { allReduceDirect, allReduceSlices } from '../../../src/backend/algorithms/all-reduce';
import { allToAllSchedule } from '../../../src/backend/algorithms/all-to-all';
import { barrierSchedule } from '../../../src/backend/algorithms/barrier';
import { broadcastChain, broadcastTree } from '../../../src/backend/algorithms/broadcast';
import { gatherSchedule, scatterSchedule } from '../../../src/backend/algorithms/gather-scatter';
import { chunksOf, evenParts, partsOf } from '../../../src/backend/algorithms/partition';
import { windowOf } from '../../../src/backend/algorithms/reduce-at-owners';
import { allReduceDoubling } from '../../../src/backend/algorithms/recursive-doubling';
import { reduceSchedule, reduceScatterSchedule } from '../../../src/backend/algorithms/reduce-scatter';
import type { Place, Schedule } from '../../../src/backend/algorithms/schedule';
import type { CollectiveCall } from '../../../src/backend/call';
import { bytesSent } from '../../../src/backend/ledger';
import { count } from '../../helpers/counts';
import { simulate, type RankMemory, type SimulatedWorld } from './algorithms-simulator';

const SIZES = Array.from({ length: 16 }, (_unused, index) => index + 1);
const NUM_SEEDS = count('schedules: random interleavings', 1, 30);
const CHUNK = 2;

/** Lengths around multiples of the world's size, so that every remainder comes up; long ones have many chunks. */
const lengthsFor = (size: number): number[] => [
  ...new Set([0, 1, size - 1, size, size + 1, 2 * size + 3, ...(size <= 4 ? [23 * size + 1] : [])]),
];

const ranksOf = (size: number): number[] => Array.from({ length: size }, (_unused, rank) => rank);
const elements = (name: string, length: number, start = 0): string[] =>
  Array.from({ length }, (_unused, i) => `${name}.${start + i}`);
const elementsOfRanks = (size: number, i: number): string[] => ranksOf(size).map((rank) => `${rank}.${i}`);
/** Element i of a reduction in rank order. */
const reduced = (size: number, i: number): string => elementsOfRanks(size, i).join('+');
const apart = (input: string[], outputLength: number): RankMemory => ({
  input,
  output: new Array<string>(outputLength).fill('untouched'),
});

function simulateAll(
  size: number,
  scheduleOf: (place: Place) => Schedule,
  memoryOf: (rank: number) => RankMemory,
  check: (world: SimulatedWorld) => void,
): void {
  for (let seed = 0; seed < NUM_SEEDS; seed++) check(simulate(size, seed, scheduleOf, memoryOf));
}

/** Elements that ranks send must be what the ledger counts; of one byte each. Remainders may move between ranks. */
function expectLedger(size: number, { sent }: SimulatedWorld, call: CollectiveCall, isExact = true): void {
  const counted = ranksOf(size).map((rank) => bytesSent({ dtype: 'int8', ...call }, rank, size));
  const total = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0);
  expect(total(sent)).toBeCloseTo(total(counted), 6);
  if (isExact) expect(sent).toEqual(counted);
}

describe.each(SIZES)('on %i ranks, in every order of steps and deliveries,', (size) => {
  test('allReduce in slices gives every rank the reduction in rank order, by 2 (N-1)/N of the buffer', () => {
    for (const length of lengthsFor(size)) {
      simulateAll(
        size,
        (place) => allReduceSlices(place, { length, chunkLength: CHUNK }),
        (rank) => {
          const data = elements(String(rank), length);
          return { input: data, output: data };
        },
        (world) => {
          for (const { output } of world.memories) expect(output).toEqual(ranksOf(length).map((i) => reduced(size, i)));
          expectLedger(size, world, { op: 'allReduce', counts: length }, length % size === 0);
        },
      );
    }
  });

  test('allReduce of small messages gives the same, in one hop', () => {
    for (const length of [0, 1, 5]) {
      simulateAll(
        size,
        (place) => allReduceDirect(place, length),
        (rank) => {
          const data = elements(String(rank), length);
          return { input: data, output: data };
        },
        ({ memories, numMessages }) => {
          for (const { output } of memories) expect(output).toEqual(ranksOf(length).map((i) => reduced(size, i)));
          expect(numMessages).toBe(size * (size - 1));
        },
      );
    }
  });

  test('allReduce by doubling takes every rank in once, all in the same order, in few messages, and is finished once', () => {
    const coreSize = 2 ** Math.floor(Math.log2(size));
    for (const length of [0, 1, 5]) {
      simulateAll(
        size,
        (place) => allReduceDoubling(place, length),
        (rank) => {
          const data = elements(String(rank), length);
          return { input: data, output: data };
        },
        ({ memories, numMessages }) => {
          for (const { output } of memories) {
            expect(output).toEqual(memories[0]?.output); // the order of all additions, so the bits too
            output.forEach((value, i) => {
              expect(value[0]).toBe('=');
              const terms = value.slice(1).split('+');
              expect(terms.sort()).toEqual(elementsOfRanks(size, i).sort());
            });
          }
          expect(numMessages).toBe(coreSize * Math.log2(coreSize) + 2 * (size - coreSize));
        },
      );
    }
  });

  test('reduceScatter gives every rank its slice, of equal and unequal lengths, in place and not', () => {
    const cases = [
      ranksOf(size).map(() => 0),
      ranksOf(size).map(() => 3),
      ranksOf(size).map((rank) => (rank * 5) % 7),
      ranksOf(size).map((rank) => (rank === 0 ? 2 * CHUNK * windowOf(size) + 1 : 0)),
    ];
    for (const lengths of cases) {
      const parts = partsOf(lengths);
      const total = lengths.reduce((sum, length) => sum + length, 0);
      const expected = (rank: number): string[] =>
        ranksOf(lengths[rank] as number).map((i) => reduced(size, (parts[rank]?.start ?? 0) + i));
      simulateAll(
        size,
        (place) => reduceScatterSchedule(place, lengths, CHUNK),
        (rank) => apart(elements(String(rank), total), lengths[rank] as number),
        (world) => {
          world.memories.forEach(({ output }, rank) => expect(output).toEqual(expected(rank)));
          expectLedger(size, world, { op: 'reduceScatter', counts: lengths });
        },
      );
    }
  });

  test('reduce gives the root the reduction in rank order', () => {
    for (const root of new Set([0, size - 1])) {
      for (const length of lengthsFor(size)) {
        simulateAll(
          size,
          (place) => reduceSchedule(place, root, length, CHUNK),
          (rank) => apart(elements(String(rank), length), rank === root ? length : 0),
          (world) => {
            expect(world.memories[root]?.output).toEqual(ranksOf(length).map((i) => reduced(size, i)));
            expectLedger(size, world, { op: 'reduce', counts: length, root });
          },
        );
      }
    }
  });

  test('broadcast, by chain and by tree, gives every rank what the root has', () => {
    for (const root of new Set([0, Math.floor(size / 2), size - 1])) {
      for (const length of [0, 1, 2 * CHUNK + 1]) {
        for (const isChain of [true, false]) {
          const shape = { root, length };
          simulateAll(
            size,
            (place) => (isChain ? broadcastChain(place, shape, CHUNK) : broadcastTree(place, shape)),
            (rank) => {
              const data = elements(String(rank), length);
              return { input: data, output: data };
            },
            (world) => {
              for (const { output } of world.memories) expect(output).toEqual(elements(String(root), length));
              // The ledger counts the chain; a tree sends the same in all, by fewer ranks.
              expectLedger(size, world, { op: 'broadcast', counts: length, root }, isChain);
            },
          );
        }
      }
    }
  });

  test('allGather gives every rank all parts, of equal and unequal lengths', () => {
    for (const lengths of [ranksOf(size).map(() => 2), ranksOf(size).map((rank) => (rank * 3) % 4)]) {
      const parts = partsOf(lengths);
      const total = lengths.reduce((sum, length) => sum + length, 0);
      const all = parts.flatMap(({ start, length }, rank) => elements(String(rank), length, start));
      simulateAll(
        size,
        (place) => allGatherSchedule(place, lengths),
        (rank) => apart(elements(String(rank), lengths[rank] as number, parts[rank]?.start), total),
        (world) => {
          for (const { output } of world.memories) expect(output).toEqual(all);
          expectLedger(size, world, { op: 'allGather', counts: lengths });
        },
      );
    }
  });

  test('gather and scatter move every part between its rank and the root', () => {
    const length = 3;
    const all = ranksOf(size).flatMap((rank) => elements(String(rank), length));
    for (const root of new Set([0, size - 1])) {
      simulateAll(
        size,
        (place) => gatherSchedule(place, root, length),
        (rank) => apart(elements(String(rank), length), rank === root ? size * length : 0),
        (world) => {
          expect(world.memories[root]?.output).toEqual(all);
          expectLedger(size, world, { op: 'gather', counts: length, root });
        },
      );
      simulateAll(
        size,
        (place) => scatterSchedule(place, root, length),
        (rank) => apart(rank === root ? all : [], length),
        (world) => {
          world.memories.forEach(({ output }, rank) => expect(output).toEqual(elements(String(rank), length)));
          expectLedger(size, world, { op: 'scatter', counts: length, root });
        },
      );
    }
  });

  test('allToAll gives rank j of rank i the j-th part, empty ones too, and has it acknowledged', () => {
    const lengthOf = (from: number, to: number): number => (from + 2 * to) % 3;
    simulateAll(
      size,
      ({ rank }) =>
        allToAllSchedule(
          { rank, size },
          ranksOf(size).map((peer) => lengthOf(rank, peer)),
          ranksOf(size).map((peer) => lengthOf(peer, rank)),
        ),
      (rank) => {
        const input = ranksOf(size).flatMap((to) => elements(`${rank}>${to}`, lengthOf(rank, to)));
        const outputLength = ranksOf(size).reduce((sum, from) => sum + lengthOf(from, rank), 0);
        return apart(input, outputLength);
      },
      ({ memories, numMessages }) => {
        memories.forEach(({ output }, rank) => {
          expect(output).toEqual(ranksOf(size).flatMap((from) => elements(`${from}>${rank}`, lengthOf(from, rank))));
        });
        expect(numMessages).toBe(2 * size * (size - 1));
      },
    );
  });

  test('barrier: every rank hears, over some way, of every other before it leaves', () => {
    simulateAll(
      size,
      barrierSchedule,
      () => apart([], 0),
      ({ numMessages }) => expect(numMessages).toBe(size * Math.ceil(Math.log2(size))),
    );
    // Who has heard of whom, following the messages of one rank's dependencies.
    const heard = ranksOf(size).map((rank) => new Set([rank]));
    for (let distance = 1; distance < size; distance *= 2) {
      const before = heard.map((set) => new Set(set));
      for (const rank of ranksOf(size)) {
        const { steps } = barrierSchedule({ rank, size });
        const from = (rank - distance + size) % size;
        expect(steps.some((step) => step.kind === 'receive' && step.peer === from)).toBe(true);
        for (const other of before[from] ?? []) heard[rank]?.add(other);
      }
    }
    for (const set of heard) expect(set.size).toBe(size);
  });
});

describe('parts', () => {
  test('even parts cover the buffer once and differ by at most one element', () => {
    for (const length of [0, 1, 7, 64, 101]) {
      for (const size of SIZES) {
        const parts = evenParts(length, size);
        const lengths = parts.map((part) => part.length);
        expect(partsOf(lengths)).toEqual(parts);
        expect(lengths.reduce((sum, part) => sum + part, 0)).toBe(length);
        expect(Math.max(...lengths) - Math.min(...lengths)).toBeLessThanOrEqual(1);
      }
    }
  });

  test('chunks cover their part once; an empty part has one empty chunk', () => {
    expect(chunksOf({ start: 5, length: 7 }, 3)).toEqual([
      { start: 5, length: 3 },
      { start: 8, length: 3 },
      { start: 11, length: 1 },
    ]);
    expect(chunksOf({ start: 5, length: 0 }, 3)).toEqual([{ start: 5, length: 0 }]);
  });
});

describe('memory', () => {
  test.each(SIZES)('an allReduce of 100 MiB on %i ranks needs at most 32 MiB of scratch', (size) => {
    const chunkLength = (256 * 1024) / 4;
    for (const rank of [0, size - 1]) {
      const { scratchLength } = allReduceSlices({ rank, size }, { length: (100 * 2 ** 20) / 4, chunkLength });
      expect(scratchLength * 4).toBeLessThanOrEqual(32 * 2 ** 20);
    }
  });
});
