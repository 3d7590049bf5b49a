/** `deterministic: false`: where results may leave rank order, and where they may not. */
import type { Backend } from '../../../src/backend/backend';
import { GrpcBackend } from '../../../src/backend/grpc/grpc-backend';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { Float16Buffer } from '../../../src/core/half-buffer';
import type { HostBuffer } from '../../../src/core/dtype';
import { CANONICAL_NAN, specialNumbers, withBits } from '../../helpers/nan-bits';
import { createMemoryMeshes } from '../../helpers/memory-mesh';
import { withGrpcWorld, type GrpcRank } from '../../helpers/grpc-worlds';
import { failureOf } from './mock-worlds';

const SIZE = 4;
const LENGTH = 100;
/** Sums of these depend on their order: 1e8 and 1 do not add up in float32. */
const dependentOnOrder = (rank: number): Float32Array =>
  new Float32Array(LENGTH).fill([1e8, 1, -1e8, 1][rank % 4] ?? 0);

const allReduceAll = async (backends: readonly Backend[]): Promise<Float32Array[]> =>
  Promise.all(
    backends.map(async (backend) => {
      const data = dependentOnOrder(backend.rank);
      await backend.allReduce(data, 'Sum');
      return data;
    }),
  );
const copyOf = (buffer: HostBuffer): HostBuffer => structuredClone(buffer);
/** Highest digit first, of a little-endian number. */
const hexOf = (bytes: ArrayBuffer): string => Buffer.from(bytes.slice(0)).reverse().toString('hex');
const backendsOf = (ranks: readonly GrpcRank[]): readonly Backend[] => ranks.map(({ backend }) => backend);

test('a small all-reduce on 4 ranks goes by doubling: 2 messages a rank instead of 3, in an order of its own', async () => {
  await withGrpcWorld(
    SIZE,
    async (ranks) => {
      const sums = await allReduceAll(backendsOf(ranks));
      for (const sum of sums) expect(sum).toEqual(new Float32Array(LENGTH).fill(0)); // (1e8 + 1) + (-1e8 + 1)
      for (const { traffic } of ranks) expect(traffic.dataBytes).toBe(2 * LENGTH * 4);
    },
    { deterministic: false },
  );
});

test('without the option, and on the mock with it, the order is that of the ranks', async () => {
  await withGrpcWorld(SIZE, async (ranks) => {
    for (const sum of await allReduceAll(backendsOf(ranks))) expect(sum[0]).toBe(1); // ((1e8 + 1) - 1e8) + 1
    for (const { traffic } of ranks) expect(traffic.dataBytes).toBe(3 * LENGTH * 4);
  });
  const mock = MockBackend.createWorld(SIZE, { deterministic: false });
  const sums = await Promise.all(
    mock.map((backend) =>
      backend.run(async () => {
        const data = dependentOnOrder(backend.rank);
        await backend.allReduce(data, 'Sum');
        return data[0];
      }),
    ),
  );
  expect(sums).toEqual(new Array(SIZE).fill(1));
});

test.each([1, 2, 3, 5, 6, 7, 8])('an average over %i ranks is divided once, by all of them', async (size) => {
  await withGrpcWorld(
    size,
    async (ranks) => {
      for (const DataArray of [Float32Array, Float64Array]) {
        const averages = await Promise.all(
          backendsOf(ranks).map(async (backend) => {
            const data = new DataArray(5).fill(3 * backend.rank + 1);
            await backend.allReduce(data, 'Average');
            return data;
          }),
        );
        for (const average of averages) expect(average).toEqual(new DataArray(5).fill((3 * (size - 1)) / 2 + 1));
      }
    },
    { deterministic: false },
  );
});

test.each([
  ['float32', 32 * 1024, Float32Array],
  ['float64', 16 * 1024, Float64Array],
])('%s go by doubling up to 128 KiB, which is %i elements, and not one element further', async (_what, most, Data) => {
  await withGrpcWorld(
    SIZE,
    async (ranks) => {
      const sentFor = async (length: number): Promise<number[]> => {
        for (const { traffic } of ranks) traffic.dataBytes = 0;
        await Promise.all(backendsOf(ranks).map(async (backend) => backend.allReduce(new Data(length), 'Sum')));
        return ranks.map(({ traffic }) => traffic.dataBytes / Data.BYTES_PER_ELEMENT);
      };
      expect(await sentFor(most)).toEqual(new Array(SIZE).fill(2 * most));
      for (const elements of await sentFor(most + 1)) expect(Math.abs(elements - 1.5 * (most + 1))).toBeLessThan(2);
    },
    { deterministic: false },
  );
});

test.each(['float32', 'float64'] as const)('every NaN of %s has the same bits by doubling too', async (dtype) => {
  await withGrpcWorld(
    SIZE,
    async (ranks) => {
      for (const op of ['Sum', 'Average'] as const) {
        for (const special of specialNumbers(dtype)) {
          const results = await Promise.all(
            backendsOf(ranks).map(async (backend) => {
              const data = (backend.rank === 1 ? copyOf(special) : withBits(dtype, 0n)) as Float32Array | Float64Array;
              await backend.allReduce(data, op);
              return data;
            }),
          );
          const [value] = special as Float32Array | Float64Array;
          if (!Number.isNaN(value)) continue;
          for (const { buffer } of results) expect(hexOf(buffer as ArrayBuffer)).toBe(CANONICAL_NAN[dtype]);
        }
      }
    },
    { deterministic: false },
  );
});

test.each([
  ['large buffers', () => new Float32Array(2 ** 18), 1.5],
  ['16-bit floats', () => new Float16Buffer(64), 3],
  ['integers', () => new Int32Array(64), 3],
])('%s keep rank order', async (_what, create, share) => {
  await withGrpcWorld(
    SIZE,
    async (ranks) => {
      const { byteLength } = create();
      await Promise.all(backendsOf(ranks).map(async (backend) => backend.allReduce(create(), 'Average')));
      for (const { traffic } of ranks) expect(traffic.dataBytes).toBe(share * byteLength);
    },
    { deterministic: false },
  );
});

test('a subgroup is as its world', async () => {
  await withGrpcWorld(
    SIZE + 1,
    async (ranks) => {
      const members = [1, 2, 3, 4];
      const groups = await Promise.all(backendsOf(ranks).map(async (backend) => backend.split(members)));
      for (const group of groups.slice(1)) expect(group?.capabilities.bitwise).toBe(false);
      await Promise.all(groups.slice(1).map(async (group) => group?.allReduce(new Float32Array(LENGTH), 'Sum')));
      for (const { traffic } of ranks.slice(1)) expect(traffic.dataBytes).toBe(2 * LENGTH * 4);
    },
    { deterministic: false },
  );
});

test('ranks that disagree about it are told so by all of them, each with what it called', async () => {
  const world = createMemoryMeshes(2).map((mesh, rank) =>
    GrpcBackend.over(mesh, { timeoutMs: 10_000, deterministic: rank === 0 ? false : undefined }),
  );
  try {
    const calls = world.map((backend) => failureOf(backend.allReduce(new Float32Array(4), 'Sum')));
    for (const error of await Promise.all(calls)) {
      expect(error.code).toBe('LOCKSTEP_MISMATCH');
      expect(error.message).toMatch(/rank 0: allReduce\(float32\[4\], Sum, deterministic: false\)/);
      expect(error.message).toMatch(/rank 1: allReduce\(float32\[4\], Sum\)/);
    }
  } finally {
    await Promise.all(world.map((backend) => backend.close()));
  }
});
