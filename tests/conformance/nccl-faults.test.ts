/** What goes wrong below the NCCL backend, on the stand-ins: a typed error on every rank that is left, and a clean end. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../helpers/free-port';
import { describeNative, standInEnvironment } from '../helpers/native-build';
import { RankProcess } from '../helpers/rank-processes';
import type { tasks } from './nccl-device-tasks';
import { expectNoReport } from './nccl-factory';
import type { Ending } from './program';

type Tasks = typeof tasks;
type Ranks = readonly [RankProcess<Tasks>, ...RankProcess<Tasks>[]];

const LIMIT_MS = 60_000;
/** Of calls; long before it a failure is known otherwise. */
const TIMEOUT_MS = 20_000;
const SOON_MS = 10_000;

const errorOf = (ending: Ending | undefined): Extract<Ending, { ok: false }>['error'] => {
  if (ending?.ok !== false) throw new Error('the call did not fail');
  return ending.error;
};

describeNative('faults below the nccl backend, on the stand-ins', ['addon', 'stand-ins'], (build) => {
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-nccl-faults-'));
  const report = join(folder, 'report');
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** A world of new processes. They must be able to end by themselves when their worlds are closed. */
  async function inWorld(
    size: number,
    env: Readonly<Record<string, string>>,
    run: (ranks: Ranks) => Promise<void>,
  ): Promise<void> {
    const options = {
      tasksFile: join(__dirname, 'nccl-device-tasks.ts'),
      env: { ...standInEnvironment(build), STANDIN_CUDA_REPORT: report, ...env },
    };
    const ranks = Array.from({ length: size }, () => new RankProcess<Tasks>(options));
    try {
      const job = {
        backend: 'nccl',
        worldSize: size,
        masterPort: await freePort(),
        token: 'a token',
        timeoutMs: TIMEOUT_MS,
      };
      await Promise.all(ranks.map((each, rank) => each.call('open', { ...job, rank })));
      await run(ranks as unknown as Ranks);
      const left = ranks.filter(({ isUsable }) => isUsable);
      await Promise.all(left.map((each) => each.call('close', undefined)));
      expect(await Promise.all(left.map((each) => each.leave()))).toEqual(left.map(() => ({ code: 0, signal: null })));
      expectNoReport(report);
    } finally {
      await Promise.all(ranks.map((each) => each.end()));
    }
  }

  test.each(['error', 'hang'])(
    'a rank that is killed in mid-collective is named to the others at once, whether NCCL notices (%s)',
    async (death) => {
      await inWorld(3, { STANDIN_NCCL_PEER_DEATH: death }, async ([first, second, third]) => {
        const start = performance.now();
        const calls = [first, second as RankProcess<Tasks>].map((rank) => rank.call('reduce', { count: 1000 }));
        await new Promise((resolve) => setTimeout(resolve, 200));
        third?.kill('SIGKILL');
        await third?.ended;
        for (const { ending } of await Promise.all(calls)) {
          expect(errorOf(ending)).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', op: 'allReduce', ranks: [2] });
        }
        expect(performance.now() - start).toBeLessThan(SOON_MS);
      });
    },
    LIMIT_MS,
  );

  test(
    'a collective that hangs on one device ends on all ranks at its deadline',
    async () => {
      await inWorld(2, { STANDIN_NCCL_HANG_SEQUENCE: '0', STANDIN_NCCL_HANG_RANK: '1' }, async (ranks) => {
        const results = await Promise.all(ranks.map((rank) => rank.call('reduce', { count: 10, timeoutMs: 300 })));
        for (const { ending } of results) {
          const { code, message } = errorOf(ending);
          expect(code).toBe('LOCKSTEP_TIMEOUT');
          expect(message).toMatch(
            /All ranks have arrived, but NCCL has not finished\..*operation \d+ of communicator world/,
          );
        }
      });
    },
    LIMIT_MS,
  );

  test(
    'an abort that does not return holds up neither the error nor the end of the process',
    async () => {
      const env = {
        STANDIN_NCCL_HANG_SEQUENCE: '0',
        STANDIN_NCCL_HANG_RANK: '1',
        STANDIN_NCCL_ABORT_HANG_MS: '100000',
      };
      await inWorld(2, env, async (ranks) => {
        const results = await Promise.all(ranks.map((rank) => rank.call('reduce', { count: 10, timeoutMs: 300 })));
        for (const { ending } of results) expect(errorOf(ending).code).toBe('LOCKSTEP_TIMEOUT');
      });
    },
    LIMIT_MS,
  );

  test(
    'an error that NCCL reports later is told to all ranks, with its words',
    async () => {
      await inWorld(2, { STANDIN_NCCL_ASYNC_ERROR: '3:0:1' }, async (ranks) => {
        const results = await Promise.all(ranks.map((rank) => rank.call('reduce', { count: 10 })));
        for (const [rank, { ending }] of results.entries()) {
          const error = errorOf(ending);
          expect(error).toMatchObject({ code: 'LOCKSTEP_NATIVE', scope: 'group', rank, op: 'allReduce', sequence: 0 });
          expect(error.message).toMatch(/on rank 1, on cuda:1: .*ncclCommGetAsyncError/);
        }
      });
    },
    LIMIT_MS,
  );

  test(
    'memory that one rank does not have ends the call on all, and that rank alone says how much is in use',
    async () => {
      await inWorld(2, { STANDIN_CUDA_MEM_MB: '64' }, async (ranks) => {
        const results = await Promise.all(
          ranks.map((rank, index) => rank.call('reduce', { count: 1000, hoard: index === 1 ? 60 : 0 })),
        );
        for (const { ending } of results) {
          const { code, message } = errorOf(ending);
          expect(code).toBe('LOCKSTEP_NATIVE');
          expect(message).toMatch(/on rank 1, on cuda:1.*bytes.*in use.*Dispose of device buffers/);
        }
      });
    },
    LIMIT_MS,
  );

  test(
    'after a sticky error the process is told to start again',
    async () => {
      await inWorld(2, { STANDIN_CUDA_STICKY_AT: '2' }, async (ranks) => {
        const results = await Promise.all(ranks.map((rank) => rank.call('reduce', { count: 10 })));
        const errors = results.map(({ ending }) => errorOf(ending));
        for (const { code, message } of errors) {
          expect(code).toBe('LOCKSTEP_NATIVE');
          expect(message).toMatch(/start the process again/);
        }
        // both devices are lost; who is told of the other's before its own fails has lost the group alone, so far
        expect(errors.map(({ scope }) => scope)).toContain('process');
        expect(['process', 'group']).toEqual(expect.arrayContaining(errors.map(({ scope }) => scope)));
      });
    },
    LIMIT_MS,
  );
});
