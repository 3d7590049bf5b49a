/** The GPT example: it learns, stops and goes on, and no flag changes what it learns. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sampleText } from '../../examples/gpt/sampling';
import { readSettings, type Settings } from '../../examples/gpt/settings';
import { DEFAULT_TEXT, loadText, type Text } from '../../examples/gpt/text';
import { trainGpt, type StepReport, type TrainingEvents } from '../../examples/gpt/training';
import { memory } from '../../src/core/memory-account';
import { runWorld } from '../../src/testing/run-world';
import { withFullParameters } from '../../src/zero/full-parameters';

const TINY = [
  '--layers',
  '1',
  '--heads',
  '2',
  '--width',
  '16',
  '--context',
  '16',
  '--batch',
  '2',
  '--report-every',
  '1',
];

interface Trained {
  readonly reports: readonly StepReport[];
  readonly parameters: Readonly<Record<string, unknown>>;
  readonly isStopped: boolean;
  readonly peak: number;
  readonly sample: string;
}

let text: Text;
let folder: string;
beforeAll(async () => {
  text = loadText(DEFAULT_TEXT);
  folder = await mkdtemp(join(tmpdir(), 'lockstep-gpt-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Train on `ranks` mock ranks; what rank 0 reports. @param stopAfter steps after which rank 1 asks to stop */
async function train(ranks: number, args: readonly string[], stopAfter = Infinity): Promise<Trained> {
  const settings = readSettings([...TINY, ...args]) as Settings;
  const results = await runWorld(ranks, async (world) => {
    const reports: StepReport[] = [];
    const events: TrainingEvents = {
      onStart: () => memory.resetPeak(),
      onReport: (report) => reports.push(report),
      onSaved: () => undefined,
    };
    const shouldStop = (): boolean => world.rank === 1 && reports.length + 1 > stopAfter;
    const { model, isStopped } = await trainGpt(world, text, settings, events, shouldStop);
    const peak = memory.totals().peak;
    const state = await withFullParameters(model, () => model.stateDict());
    const parameters = Object.fromEntries(Object.entries(state).map(([name, tensor]) => [name, tensor.toArray()]));
    const sampling = { length: 5, prompt: 'light', temperature: 0.8, context: settings.context, seed: 3 };
    return { reports, parameters, isStopped, peak, sample: await sampleText(model, text.vocabulary, sampling) };
  });
  return results[0] as Trained;
}

test('the loss falls; stage, activation checkpointing and a stop with a resume leave the bits as they are', async () => {
  const plain = await train(2, ['--steps', '8', '--stage', '0', '--accumulate', '2']);
  const losses = plain.reports.map(({ loss }) => loss);
  expect(losses[7]).toBeLessThan((losses[0] as number) - 0.3);
  expect(plain.sample).toMatch(/^light.{5}$/su);

  const saving = await train(2, ['--steps', '8', '--stage', '3', '--accumulate', '2', '--activation-checkpoint']);
  expect([saving.reports, saving.parameters, saving.sample]).toEqual([plain.reports, plain.parameters, plain.sample]);

  const args = ['--steps', '8', '--stage', '2', '--accumulate', '2', '--checkpoint', folder];
  const stopped = await train(2, args, 3);
  expect([stopped.isStopped, stopped.reports]).toEqual([true, plain.reports.slice(0, 4)]);
  const resumed = await train(2, [...args, '--resume', '--stage', '1']);
  expect([resumed.reports, resumed.parameters]).toEqual([plain.reports.slice(4), plain.parameters]);
});

test('stage 3 with activation checkpointing holds less at its peak than stage 0', async () => {
  const args = ['--layers', '4', '--batch', '1', '--width', '32', '--steps', '1'];
  const plain = await train(2, [...args, '--stage', '0']);
  const saving = await train(2, [...args, '--stage', '3', '--activation-checkpoint']);
  expect(saving.peak).toBeLessThan(0.7 * plain.peak);
});

test('in bfloat16 and in float16 it learns what it learns in float32, nearly', async () => {
  const lastLoss = async (precision: string): Promise<number> => {
    const { reports } = await train(2, ['--steps', '6', '--precision', precision]);
    return reports.at(-1)?.loss as number;
  };
  const exact = await lastLoss('float32');
  expect(Math.abs((await lastLoss('bfloat16')) - exact)).toBeLessThan(0.05);
  expect(Math.abs((await lastLoss('float16')) - exact)).toBeLessThan(0.05);
});

test.each([
  [['--stage', '4'], "--stage: expected one of 0, 1, 2, 3, got '4'"],
  [['--precision', 'int8'], "--precision: expected one of float32, bfloat16, float16, got 'int8'"],
  [['--steps', 'x'], "--steps: expected a whole number of 0 or more, got 'x'"],
  [['--resume'], '--resume: say from where with --checkpoint DIR.'],
])('%j is refused by the name of the flag', (args, message) => {
  expect(() => readSettings(args)).toThrow(message);
});
