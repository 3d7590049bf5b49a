/** ZeRO on processes: the bits that it has on the mock, on either data plane, and memory that is really given back. */
import { join } from 'node:path';
import { runWorld } from '../../src/testing/index';
import { planMemory } from '../../src/zero/memory-plan';
import { count, isLong } from '../helpers/counts';
import { freePort } from '../helpers/free-port';
import { RankProcesses } from '../helpers/rank-processes';
import { testWhere } from '../helpers/test-where';
import type { Held, MemoryArgs, MemoryRun } from './zero-memory-program';
import { trainForParity, type ParityArgs, type ParityRun } from './zero-program';
import type { tasks } from './zero-tasks';

const MOST_RANKS = count('ZeRO on processes: ranks', 2, 4);
const STEPS = count('ZeRO on processes: steps', 2, 20);
const LIMIT_MS = 120_000;

const trainings: ParityArgs[] = (['MLP', 'transformer'] as const).flatMap((model) =>
  ([0, 1, 2, 3] as const).map((way) => ({ model, way, steps: STEPS })),
);

const processes = new RankProcesses<typeof tasks>({
  tasksFile: join(__dirname, 'zero-tasks.ts'),
  nodeOptions: ['--expose-gc'],
});
afterAll(() => processes.close());

type Rank = ReturnType<typeof processes.take>[number];

/** What `run` gives on each of `size` processes that share a world. */
async function inWorld<R>(size: number, dataPlane: 'grpc' | 'socket', run: (rank: Rank) => Promise<R>): Promise<R[]> {
  const ranks = processes.take(size);
  const job = { worldSize: size, masterPort: await freePort(), dataPlane, timeoutMs: LIMIT_MS };
  await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank }, LIMIT_MS)));
  const results = await Promise.all(ranks.map(run));
  await Promise.all(ranks.map((process) => process.call('close', undefined)));
  return results;
}

const MIB = 2 ** 20;

function measured(args: MemoryArgs): Promise<MemoryRun[]> {
  return inWorld(2, 'socket', (rank) => rank.call('trainMeasured', args, LIMIT_MS));
}

/** All that is held by the formula: after a step, and after its zeroGrad. */
function formula({ layers, width, options: { stage = 2 } }: MemoryArgs): { stepped: number; zeroed: number } {
  const plan = planMemory({ params: layers * width ** 2, worldSize: 2 })[stage];
  if (plan === undefined) throw new Error(`no stage ${stage}`);
  return { stepped: plan.total, zeroed: plan.total - plan.gradients };
}

test('after each step of stage 3 a process has the typed arrays that the formula says, to two units', async () => {
  const width = 512;
  const unit = 4 * width ** 2;
  const args = { layers: 16, width, steps: 2, options: { stage: 3, mergeThreshold: 0 } } as const;
  const { stepped, zeroed } = formula(args);
  const expectHeld = ({ arrayBuffers, accounted }: Held, bytes: number): void => {
    expect(accounted).toBe(bytes);
    expect(Math.abs(arrayBuffers - bytes) / unit).toBeLessThan(2); // scratch that the backend keeps for the next collective
  };
  for (const run of await measured(args)) {
    expectHeld(run.wrapped, 4 * args.layers * width ** 2 * (1 / 2));
    for (const held of run.stepped) expectHeld(held, stepped);
    for (const held of run.zeroed) expectHeld(held, zeroed);
    expectHeld(run.insideFullParameters, zeroed + args.layers * unit);
    expectHeld(run.afterFullParameters, zeroed);
  }
}, 60_000);

const isLinux = process.platform === 'linux';
testWhere(isLinux, 'ZeRO: resident memory falls', 'Linux, whose malloc returns large pieces at once')(
  'resident memory falls with zeroGrad and with the release of a gathered unit',
  async () => {
    const width = 4096; // a half, and the whole, are too large for what malloc keeps to itself
    const whole = 4 * width ** 2;
    const ranks = await measured({ layers: 1, width, steps: 1, options: { stage: 3, mergeThreshold: 0 } });
    for (const { wrapped, stepped, zeroed, insideFullParameters, afterFullParameters } of ranks) {
      const growths = [wrapped, ...stepped, ...zeroed, insideFullParameters, afterFullParameters]
        .map(({ resident }, index, all) => (resident - (all[index - 1]?.resident ?? 0)) / whole)
        .slice(1);
      // a half of the gradient and of each state buffer; the gradient; the whole weight, there and gone
      [1.5, -0.5, 1, -1].forEach((expected, index) => {
        const growth = growths[index] as number;
        expect({ growth, isAsExpected: Math.abs(growth - expected) < 0.25 }).toEqual({ growth, isAsExpected: true });
      });
    }
  },
  60_000,
);

/** The most that the backend keeps of scratch; 32 MiB. */
const MOST_SCRATCH = 32 * MIB;
/** Code, the heap of objects, and what malloc keeps to itself. */
const REST = 64 * MIB;

testWhere(isLong, 'ZeRO: the resident memory of each stage', '`npm run test:long`')(
  'each stage of a model of 64 MiB takes the memory that the formula says',
  async () => {
    const resident: number[] = [];
    for (const stage of [0, 1, 2, 3] as const) {
      await processes.close(); // each stage in processes that have done nothing else
      const args = { layers: 64, width: 512, steps: 4, options: { stage, mergeThreshold: 0, bucketCapMb: 1 } } as const;
      const { stepped, zeroed } = formula(args);
      for (const run of await measured(args)) {
        for (const held of run.stepped) expect(held.arrayBuffers - stepped).toBeLessThan(MOST_SCRATCH + 2 * MIB);
        for (const held of run.zeroed) expect(held.arrayBuffers - zeroed).toBeLessThan(MOST_SCRATCH + 2 * MIB);
        for (const held of run.stepped) expect(held.resident - stepped).toBeLessThan(MOST_SCRATCH + REST);
        resident[stage] = run.stepped.at(-1)?.resident as number;
      }
    }
    for (const stage of [1, 2, 3]) expect(resident[stage]).toBeLessThan(resident[stage - 1] as number);
    expect(resident[3]).toBeLessThan(0.75 * (resident[0] as number)); // 16P/2 against 16P, beside what both have
  },
  600_000,
);

describe.each([2, 4].filter((size) => size <= MOST_RANKS))('on %i processes', (size) => {
  test.each((['socket', 'grpc'] as const).slice(0, count('ZeRO on processes: data planes', 1, 2)))(
    'each stage has the bits of DDP on the mock, over %s',
    async (dataPlane) => {
      const onMock = (model: ParityArgs['model']): Promise<ParityRun[]> =>
        runWorld(size, (world) => trainForParity(world, { model, way: 'ddp', steps: STEPS }));
      const expected = { MLP: await onMock('MLP'), transformer: await onMock('transformer') };
      const byRank = await inWorld(size, dataPlane, (rank) => rank.call('train', trainings, LIMIT_MS));
      for (const [index, { model, way }] of trainings.entries()) {
        const ranks = byRank.map((runs) => runs[index]);
        expect({ model, way, ranks }).toEqual({ model, way, ranks: expected[model] });
      }
    },
    2 * LIMIT_MS,
  );
});
