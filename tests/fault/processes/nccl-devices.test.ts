/** A device that fails, or a call that does not fit the others: the rank is told what happened, the others which rank. */
import { expectError, expectFailure, expectSuccess } from '../../conformance/expectations';
import { mismatchedCalls, MISMATCH_SIZE } from '../../conformance/programs/mismatched-calls';
import type { Ending } from '../../conformance/program';
import type { WireError } from '../../../src/core/error-wire';
import { isLong } from '../../helpers/counts';
import { describeNative } from '../../helpers/native-build';
import { closeAll, NcclJobs, type NcclRank } from './nccl-job';
import type { MismatchEnd } from './nccl-tasks';

const errorOf = (ending: Ending | undefined): WireError => {
  if (ending?.ok !== false) throw new Error('the call did not fail');
  return ending.error;
};

describeNative('nccl on the stand-ins', ['addon', 'stand-ins'], (folder) => {
  const jobs = new NcclJobs(folder);
  afterEach(() => expect(jobs.takeReport()).toBe(''));
  afterAll(() => jobs.close());

  /** All ranks sum; what each says. The victim is a process of its own, with these variables. */
  async function reduceWithVictim(
    victim: number,
    env: Readonly<Record<string, string>>,
    elements: number,
  ): Promise<{ readonly ranks: readonly NcclRank[]; readonly endings: readonly Ending[] }> {
    const ranks: NcclRank[] = [...(await jobs.take(2))];
    ranks.splice(victim, 0, jobs.own(env));
    await jobs.open(ranks);
    const endings = await Promise.all(ranks.map((rank) => rank.call('reduce', { elements })));
    return { ranks, endings };
  }

  test.each(['beside', 'before'])(
    'a device that is lost on one rank ends its process for GPUs, and the others are told which rank (checks %s)',
    async (checks) => {
      const victim = 1;
      const env = { STANDIN_CUDA_STICKY_AT: '1', LOCKSTEP_NCCL_CHECKS: checks };
      const { ranks, endings } = await reduceWithVictim(victim, env, 1000);
      for (const [rank, ending] of endings.entries()) {
        const error = expectFailure(`rank ${rank}`, ending, {
          code: 'LOCKSTEP_NATIVE',
          says: [/allReduce\(float32\[1000\], Sum\), sequence \d+ of group world, on rank 1, on cuda:1: /, /\b700\b/],
        });
        expect([error.rank, error.ranks]).toEqual([rank, [victim]]);
        expect({ rank, scope: error.scope }).toEqual({ rank, scope: rank === victim ? 'process' : 'group' });
      }
      expect(errorOf(endings[victim]).message).toMatch(
        /this process cannot use the device any more: .*start the process/,
      );
      await closeAll(ranks); // ends, though the device does not answer any more
      expect(await ranks[victim]?.leave()).toEqual({ code: 0, signal: null });

      // the others' processes and devices go on
      const again = await jobs.start(2);
      const sums = await Promise.all(again.map((rank) => rank.call('reduce', { elements: 10 })));
      sums.forEach((ending, rank) => expectSuccess(`rank ${rank}, in another world`, ending));
      await closeAll(again);
    },
  );

  test('memory that one rank has not got ends the group on all ranks, in words that say whose and how much', async () => {
    const victim = 2;
    const elements = 2 * 2 ** 20;
    const { ranks, endings } = await reduceWithVictim(victim, { STANDIN_CUDA_MEM_MB: '4' }, elements);
    for (const [rank, ending] of endings.entries()) {
      const error = expectFailure(`rank ${rank}`, ending, {
        code: 'LOCKSTEP_NATIVE',
        says: [/on rank 2, on cuda:2: /, /memory/, /Of 4194304 bytes, \d+ are free; this process has taken \d+/],
      });
      expect([error.scope, error.ranks]).toEqual(['group', [victim]]);
    }
    // the device itself is well
    await closeAll(ranks);
    await jobs.open(ranks);
    const sums = await Promise.all(ranks.map((rank) => rank.call('reduce', { elements: 10 })));
    sums.forEach((ending, rank) => expectSuccess(`rank ${rank}, in another world`, ending));
    await closeAll(ranks);
    expect(await ranks[victim]?.leave()).toEqual({ code: 0, signal: null });
  });

  const shortNames = [
    'another count',
    'another dtype of the same byte length',
    'another reduce op',
    'another root of a broadcast',
    'another root of a reduce',
    'the same collectives in another order',
  ];
  /** Of an all-to-all two pairs of ranks disagree, and either may be found first. */
  const longNames = Object.keys(mismatchedCalls).filter((name) => !name.includes('allToAll'));
  const names = isLong ? longNames : shortNames;

  /** Without what differs from run to run. */
  const plainError = ({ name, code, scope, message, ranks, cause }: WireError): unknown => {
    return { name, code, scope, message, ranks, cause: cause === null ? null : plainError(cause) };
  };
  const plain = (ending: Ending): unknown => (ending.ok ? 'done' : plainError(ending.error));

  test(`calls that do not fit together fail as over gRPC, whether checked beside or before, and whatever NCCL does`, async () => {
    const onAll = async (backend: string, variables: Readonly<Record<string, string>>): Promise<MismatchEnd[][]> => {
      const ranks = await jobs.start(MISMATCH_SIZE, { backend }, variables);
      const ends = await Promise.all(ranks.map((rank) => rank.call('mismatches', { names })));
      await closeAll(ranks);
      return ends;
    };
    const expected = await onAll('grpc', {});
    for (const checks of ['beside', 'before']) {
      for (const mismatch of ['hang', 'error']) {
        const variables = { LOCKSTEP_NCCL_CHECKS: checks, STANDIN_NCCL_MISMATCH: mismatch };
        const byRank = await onAll('nccl', variables);
        for (const [rank, ends] of byRank.entries()) {
          for (const [index, end] of ends.entries()) {
            const onGrpc = expected[rank]?.[index] as MismatchEnd;
            const where = { checks, mismatch, rank, name: end.name };
            expect({ ...where, world: end.world }).toEqual({ ...where, world: MISMATCH_SIZE });
            for (const [at, ending] of [...end.endings, end.later].entries()) {
              const other = [...onGrpc.endings, onGrpc.later][at] as Ending;
              // a root that only sends may be done before it could know, there or here
              if (/broadcast|scatter|order/.test(end.name) && (ending.ok || other.ok)) continue;
              expect({ ...where, at, ending: plain(ending) }).toEqual({ ...where, at, ending: plain(other) });
            }
          }
        }
      }
    }
  }, 60_000);

  test('two ranks with one device are named to all, before NCCL could wait for ever', async () => {
    const ranks = await jobs.take(3);
    const uuid = 'f'.repeat(32);
    for (const rank of [0, 2]) await ranks[rank]?.call('setVariables', { STANDIN_CUDA_UUID: uuid });
    const job = await jobs.place(3);
    const joined = await Promise.all(ranks.map((process, rank) => process.call('join', { ...job, rank })));
    for (const [rank, { error }] of joined.entries()) {
      if (error === null) throw new Error(`rank ${rank} joined`);
      const says = [/ranks 0 and 2 were given the same device on /, /uuid (GPU-)?f{8}/];
      expectError(`rank ${rank}`, error, { code: 'LOCKSTEP_INVALID_ARGUMENT', says });
      expect(error.ranks).toEqual([0, 2]);
    }
  });

  test('after close nothing of the world is left, and each process ends by itself', async () => {
    const ranks = [0, 1].map(() => jobs.own());
    for (const round of [0, 1]) {
      await jobs.open(ranks);
      const ends = await Promise.all(ranks.map((rank) => rank.call('loop', { elements: 1000, rounds: 2 })));
      expect(ends.map(({ error }) => ({ round, error }))).toEqual([0, 1].map(() => ({ round, error: null })));
      await closeAll(ranks);
      expect(await Promise.all(ranks.map((rank) => rank.call('resources', undefined)))).toEqual([[], []]);
    }
    const ended = await Promise.all(ranks.map((rank) => rank.leave()));
    expect(ended).toEqual(ranks.map(() => ({ code: 0, signal: null })));
  });
});
