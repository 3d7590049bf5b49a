/** Two ranks on one GPU, which NCCL allows to processes of their own from 2.30 on, as an experiment. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { runWorld } from 'lockstep/testing';
import { isSameBits } from '../../../src/core/dtype';
import { FLAT_UPDATE_TOLERANCE } from '../../../src/core/flat-update';
import { freePort } from '../../../src/launcher/free-port';
import { expect, type Bench } from '../bench';
import type { Check } from '../check';
import { startingParameters, trainWithDdp, trainWithZero, worstRelative } from '../digits-steps';

const OLDEST = 23_000;
const STEPS = 5;
const PROCESS_LIMIT_MS = 40_000;
/** NCCL may take the mean in another order than (a + b) / 2, so a parameter may be off by some roundings after some steps. */
const DDP_TOLERANCE = 1e-4;

const environment = {
  NCCL_MULTI_RANK_GPU_ENABLE: '1',
  // both ranks' kernels have to be on the device at the same time
  NCCL_MAX_CTAS: '4',
};

/** What both ranks printed, by rank. */
async function runPair<T>(bench: Bench, task: string): Promise<readonly [T, T]> {
  const { version = 0 } = bench.probe().nccl;
  if (version < OLDEST) bench.skip(`NCCL ${version} cannot have two ranks on one device; ${OLDEST} can`);
  const port = await freePort();
  const token = randomBytes(16).toString('hex');
  const run = (rank: number): Promise<T> =>
    runRank(task, {
      ...environment,
      LOCKSTEP_BACKEND: 'nccl',
      LOCKSTEP_JOB_TOKEN: token,
      LOCKSTEP_TIMEOUT_MS: '20000',
      RANK: String(rank),
      LOCAL_RANK: '0',
      WORLD_SIZE: '2',
      MASTER_ADDR: '127.0.0.1',
      MASTER_PORT: String(port),
    });
  const outcomes = await Promise.allSettled([run(0), run(1)]);
  const failures = outcomes.flatMap((outcome, rank) =>
    outcome.status === 'rejected' ? [`rank ${rank}: ${String(outcome.reason)}`] : [],
  );
  expect(failures.length === 0, failures.join('\n'));
  return outcomes.map((outcome) => (outcome as PromiseFulfilledResult<T>).value) as [T, T];
}

function runRank<T>(task: string, variables: Record<string, string>): Promise<T> {
  const program = join(__dirname, '..', 'rank-process.js');
  return new Promise((settle, reject) => {
    execFile(
      process.execPath,
      [program, task, String(STEPS)],
      { env: { ...process.env, ...variables }, timeout: PROCESS_LIMIT_MS, killSignal: 'SIGKILL', maxBuffer: 2 ** 26 },
      (error, stdout, stderr) => {
        process.stdout.write(`rank ${variables['RANK']} of ${task}:\n${stdout}${stderr}\n`); // into the log
        if (error === null) settle(JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as T);
        else
          reject(
            new Error(
              `${error.signal ?? `exit code ${error.code}`}: ${stderr.trim().split('\n').slice(-12).join('\n')}`,
            ),
          );
      },
    );
  });
}

interface TrainedRank {
  readonly losses: readonly number[];
  readonly ddp: string;
  readonly zero: string;
}

async function training(bench: Bench): Promise<void> {
  const ranks = await runPair<TrainedRank>(bench, 'train');
  const values = (text: string): Float32Array => new Float32Array(new Uint8Array(Buffer.from(text, 'base64')).buffer);
  const expected = await runWorld(2, async (world) => ({
    ddp: await trainWithDdp(world, STEPS),
    zero: await trainWithZero(world, 1, { stage: 2 }),
  }));
  const start = startingParameters();
  expect(isSameBits(values(ranks[0].ddp), values(ranks[1].ddp)), 'the ranks ended with different parameters');
  for (const [rank, found] of ranks.entries()) {
    const reference = expected[rank] as (typeof expected)[number];
    const ddp = worstRelative(values(found.ddp), reference.ddp.parameters, start);
    const zero = worstRelative(values(found.zero), reference.zero.parameters, start);
    const hasMockBits = isSameBits(values(found.ddp), reference.ddp.parameters);
    bench.note(`rank ${rank}`, { ddpWorstRelative: ddp, ddpHasMockBits: hasMockBits, zeroWorstRelative: zero });
    bench.note(`losses of rank ${rank}`, found.losses);
    expect(ddp <= DDP_TOLERANCE, `DDP on rank ${rank}: a parameter is off by ${ddp}, relative`);
    expect(zero <= FLAT_UPDATE_TOLERANCE, `ZeRO on rank ${rank}: a parameter is off by ${zero}, relative`);
  }
}

interface TimedOutRank {
  readonly name: string;
  readonly message: string;
  readonly afterMs: number;
}

async function timeout(bench: Bench): Promise<void> {
  const [first, second] = await runPair<TimedOutRank>(bench, 'time-out');
  bench.note('rank 0', first);
  bench.note('rank 1', second);
  expect(first.name === 'CollectiveTimeoutError', `rank 0 got ${first.name}: ${first.message}`);
  expect(/rank 1\b/i.test(first.message), `rank 1 is not named: ${first.message}`);
  expect(first.afterMs < 6000, `rank 0 waited ${first.afterMs} ms`);
}

export const twoRankChecks: readonly Check[] = [
  {
    name: 'collectives, DDP and ZeRO with shards on the device agree with two mock ranks',
    limitMs: PROCESS_LIMIT_MS + 5000,
    run: training,
  },
  {
    name: 'a collective whose second rank does not come times out while it is on the device, and both processes end well',
    limitMs: PROCESS_LIMIT_MS + 5000,
    run: timeout,
  },
];
