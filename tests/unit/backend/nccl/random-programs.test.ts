/** Mixed calls in overlapping groups, with buffers on host and device, on fake GPUs with links that deliver in random order. */
import { MockBackend } from '../../../../src/backend/registry';
import { isLockstepError } from '../../../../src/core/errors';
import { Generator } from '../../../../src/core/generator';
import { count } from '../../../helpers/counts';
import { nativeFailure } from '../../../helpers/fake-gpu';
import type { FakeNccl } from '../../../helpers/fake-nccl';
import { runNcclProgram, type CallOutcome, type NcclProgram } from '../../../helpers/nccl-program';
import { turns, withNcclWorld, type NcclRank } from '../../../helpers/nccl-worlds';

const rejections: unknown[] = [];
const noteRejection = (reason: unknown): void => void rejections.push(reason);
beforeAll(() => void process.on('unhandledRejection', noteRejection));
afterAll(() => void process.off('unhandledRejection', noteRejection));
afterEach(() => {
  delete process.env['LOCKSTEP_NCCL_CHECKS'];
  expect(rejections.splice(0)).toEqual([]);
});

async function onMock(size: number, program: NcclProgram): Promise<CallOutcome[][]> {
  const ranks = MockBackend.createWorld(size);
  const outcomes = await Promise.all(ranks.map((backend) => runNcclProgram(backend, program)));
  await Promise.all(ranks.map((backend) => backend.close()));
  return outcomes;
}

/** Close, and look for what stays behind. */
async function leavesOf(ranks: readonly NcclRank[], { misuses }: FakeNccl): Promise<unknown> {
  await Promise.all(ranks.map(({ backend }) => backend.close()));
  await turns(5);
  return { misuses, blocks: ranks.map(({ gpu }) => gpu.numBlocks), devices: ranks.map(({ gpu }) => gpu.numOpen) };
}

const nothing = (size: number) => ({
  misuses: [],
  blocks: new Array<number>(size).fill(0),
  devices: new Array<number>(size).fill(0),
});

test('results are those of the mock', async () => {
  const numSeeds = count('random programs of nccl on fake GPUs', 8, 400);
  for (let seed = 1; seed <= numSeeds; seed++) {
    process.env['LOCKSTEP_NCCL_CHECKS'] = seed % 2 === 0 ? 'beside' : 'before';
    const size = 1 + (seed % 4);
    const program = { seed, numCalls: 40, timeoutMs: 10_000 };
    const expected = await onMock(size, program);
    const test = async (ranks: readonly NcclRank[], network: FakeNccl): Promise<void> => {
      const outcomes = await Promise.all(
        ranks.map(({ backend }) => runNcclProgram(backend, program, { device: backend.device })),
      );
      const linesOf = (calls: readonly CallOutcome[]): string[] =>
        calls.map(({ title, bytes, error }) => `${title}: ${error?.stack ?? bytes ?? ''}`);
      expect({ seed, calls: outcomes.map(linesOf) }).toEqual({ seed, calls: expected.map(linesOf) });
      expect({ seed, left: await leavesOf(ranks, network) }).toEqual({ seed, left: nothing(size) });
    };
    await withNcclWorld(size, test, { seed });
  }
});

const FAULTS = [
  'allocate',
  'upload',
  'download',
  'collective',
  'commSplit',
  'lost',
  'abort',
  'close',
  'stuck',
] as const;
type Fault = (typeof FAULTS)[number];

function strike(fault: Fault, { gpu, backend, mesh }: NcclRank, network: FakeNccl, random: Generator): void {
  switch (fault) {
    case 'lost':
      return mesh.destroy(new Error('killed'));
    case 'abort':
      return backend.abort(new Error('enough'));
    case 'close':
      return void backend.close();
    case 'stuck':
      network.isStuck = true;
      return;
    default: {
      const result = [1, 3, 6][random.nextBelow(3)] as number;
      gpu.failNext(fault, nativeFailure('NCCL', 'broken', { call: 'ncclThis', result }));
    }
  }
}

/** What is wrong with the outcomes of the ranks that live. */
function faultsIn(outcomes: readonly CallOutcome[][], expected: readonly CallOutcome[][], fault: Fault): string[] {
  return outcomes.flatMap((calls, rank) => {
    const right = new Map(expected[rank]?.map(({ title, bytes }) => [title, bytes]));
    return calls.flatMap(({ title, bytes, error, isTouched }) => {
      const isUntyped = error !== undefined && (!isLockstepError(error) || error.code === 'LOCKSTEP_INTERNAL');
      const isLate = fault !== 'stuck' && isLockstepError(error, 'LOCKSTEP_TIMEOUT');
      // a program's own upload may have failed, and a copy to the host may have begun
      const isWrong = fault !== 'upload' && bytes !== undefined && bytes !== right.get(title);
      const isWritten = fault !== 'download' && error !== undefined && isTouched === true;
      const found = { isUntyped, isLate, isWrong, isWritten };
      if (!Object.values(found).includes(true)) return [];
      return `rank ${rank}, ${title}: ${JSON.stringify(found)} ${error?.stack}`;
    });
  });
}

test('whatever happens on one rank, the others learn of it before the deadline, by a typed error, and nothing stays behind', async () => {
  const numSeeds = count('random programs of nccl with a fault', FAULTS.length, 500);
  for (let seed = 1; seed <= numSeeds; seed++) {
    const random = new Generator(seed);
    process.env['LOCKSTEP_NCCL_CHECKS'] = random.nextBelow(2) === 0 ? 'beside' : 'before';
    const size = 1 + random.nextBelow(3);
    const [at, victim] = [random.nextBelow(20), random.nextBelow(size)];
    const fault = FAULTS[seed % FAULTS.length] as Fault;
    const program = { seed, numCalls: 24, timeoutMs: fault === 'stuck' ? 200 : 3000 };
    const expected = await onMock(size, program);
    const test = async (ranks: readonly NcclRank[], network: FakeNccl): Promise<void> => {
      const runOn = async (each: NcclRank, rank: number): Promise<CallOutcome[]> => {
        const onCall = (index: number): void => {
          if (rank === victim && index === at) strike(fault, each, network, random);
        };
        const outcomes = await runNcclProgram(each.backend, program, { device: each.backend.device, onCall });
        return fault === 'lost' && rank === victim ? [] : outcomes; // nobody is there to look at them
      };
      const outcomes = await Promise.all(ranks.map(runOn));
      expect({ seed, fault, faults: faultsIn(outcomes, expected, fault) }).toEqual({ seed, fault, faults: [] });
      expect({ seed, fault, left: await leavesOf(ranks, network) }).toEqual({ seed, fault, left: nothing(size) });
    };
    await withNcclWorld(size, test, { seed });
  }
}, 600_000); // half of them wait: for a deadline, or for another rank's word on what NCCL said
