import { GrpcBackend } from '../../src/backend/grpc/grpc-backend';
import { MockBackend } from '../../src/backend/mock/mock-backend';
import { count } from '../helpers/counts';
import { createMemoryMeshes } from '../helpers/memory-mesh';
import { runRandomProgram, type RandomProgram } from '../helpers/random-program';

async function onMock(size: number, program: RandomProgram): Promise<string[][]> {
  const world = MockBackend.createWorld(size, { checks: 'order', sourceLines: false });
  return Promise.all(world.map((backend) => backend.run(() => runRandomProgram(backend, program))));
}

async function onGrpc(size: number, program: RandomProgram): Promise<string[][]> {
  const world = createMemoryMeshes(size, program.seed).map((mesh) => GrpcBackend.over(mesh, { timeoutMs: 20_000 }));
  try {
    return await Promise.all(world.map((backend) => runRandomProgram(backend, program)));
  } finally {
    await Promise.all(world.map((backend) => backend.close()));
  }
}

const numSeeds = count('random programs against the mock', 1, 60);
const cases = [1, 2, 3, 4, 7].flatMap((size) => Array.from({ length: numSeeds }, (_unused, seed) => ({ size, seed })));

test.each(cases)(
  'mixed collectives of random sizes in overlapping groups have the mock’s bits: $size ranks, seed $seed',
  async ({ size, seed }) => {
    const program = { seed: seed + 1, numCalls: 60, maxLength: 100_000 };
    expect(await onGrpc(size, program)).toEqual(await onMock(size, program));
  },
  60_000,
);

test('one large call of each kind: many chunks, grants and windows', async () => {
  for (let seed = 0; seed < count('large random programs', 1, 10); seed++) {
    const program = { seed: 500 + seed, numCalls: 14, maxLength: 2_000_000 };
    expect(await onGrpc(3, program)).toEqual(await onMock(3, program));
  }
}, 120_000);
