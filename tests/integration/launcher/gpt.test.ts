/** The GPT example on processes: the mock's numbers, a checkpoint at Ctrl-C, and a resume on another number of ranks. */
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { readSettings, type Settings } from '../../../examples/gpt/settings';
import { loadText } from '../../../examples/gpt/text';
import { trainGpt, type TrainingEvents } from '../../../examples/gpt/training';
import { runWorld } from '../../../src/testing/index';
import { count } from '../../helpers/counts';
import { LauncherBench } from './launcher';

const root = join(__dirname, '../../..');
const SCRIPT = join('examples', 'gpt', 'train.ts');
const TINY = ['--stage', '3', '--layers', '1', '--heads', '2', '--width', '16', '--context', '16', '--batch', '2'];
const RESUMED_RANKS = count('GPT on processes: ranks after the resume', 1, 3);
const LIMIT_MS = 120_000;

let bench: LauncherBench;
beforeAll(() => (bench = new LauncherBench()), LIMIT_MS);
afterAll(() => bench?.close());

/** A launcher that waits for as long as a checkpoint takes on a machine with much else to do. */
const runOn = (ranks: number, args: readonly string[]): string[] => {
  return ['run', '--nproc', String(ranks), '--grace-ms', String(LIMIT_MS), SCRIPT, ...TINY, ...args];
};

const silent: TrainingEvents = { onStart: () => undefined, onReport: () => undefined, onSaved: () => undefined };

/** The last line of the example, had it run on mock ranks, and been stopped after so many steps of this run. */
async function lastLineOnMock(ranks: number, args: readonly string[], stopAfter = Infinity): Promise<string> {
  const settings = readSettings([...TINY, ...args]) as Settings;
  const text = loadText(settings.text);
  const [result] = await runWorld(ranks, (world) => {
    let steps = 0;
    return trainGpt(world, text, settings, silent, () => ++steps >= stopAfter);
  });
  const outcome = result?.isStopped === true ? 'stopped' : 'done';
  return `[0] ${outcome} at step ${result?.step}, validation loss ${result?.validationLoss.toFixed(4)}\n`;
}

test(
  'Ctrl-C saves and stops two processes; --resume goes on on another number of ranks; the losses are those of mock ranks',
  async () => {
    const saved = join(bench.folder, 'checkpoints');
    const args = ['--steps', '1000', '--report-every', '1', '--accumulate', '2'];
    const job = bench.start(runOn(2, [...args, '--checkpoint', saved]), { cwd: root });
    await job.printed(/step +3 /);
    job.child.kill('SIGINT');
    const { status, stdout, stderr } = await job.ended;
    expect({ status, stderr }).toEqual({ status: 130, stderr: 'lockstep: stopped by SIGINT\n' });
    const step = Number(/^\[0\] stopped at step (\d+), /m.exec(stdout)?.[1]);
    expect(step).toBeGreaterThanOrEqual(3);
    expect(stdout).toContain(`[0] saved ${join(saved, `step-${step}`)}\n`);
    expect(stdout).toContain(await lastLineOnMock(2, args, step));

    const copy = join(bench.folder, 'copy');
    cpSync(saved, copy, { recursive: true });
    const more = ['--steps', String(step + 2), '--resume', '--checkpoint'];
    const resumed = await bench.run(runOn(RESUMED_RANKS, [...more, saved]), { cwd: root });
    expect({ status: resumed.status, stderr: resumed.stderr }).toEqual({ status: 0, stderr: '' });
    expect(resumed.stdout).toContain(`, resumed after step ${step}\n`);
    expect(resumed.stdout).toContain(await lastLineOnMock(RESUMED_RANKS, [...more, copy]));
  },
  LIMIT_MS,
);
