/**
 * Train a small network on real handwritten digits, on mock ranks in this one process.
 *
 *     npm start                    4 ranks
 *     npm start -- --world 7       1, 2, 4, 7, ... ranks
 */
import { parseArgs } from 'node:util';
import { runWorld } from 'lockstep/testing';
import type { World } from 'lockstep';
import { loadDigits, type Digits } from './dataset';
import { defaultSettings, trainDigits, type EpochReport, type Settings, type TrainingResult } from './training';

async function main(): Promise<void> {
  const { worldSize, settings } = readArguments();
  const digits = loadDigits();
  say(
    `${digits.train.length} training and ${digits.test.length} test digits, ${worldSize} mock rank${worldSize === 1 ? '' : 's'} in one process`,
  );
  const startedMs = performance.now();
  const results = await runWorld(worldSize, (world) => trainWithProgress(world, digits, settings));
  const seconds = (performance.now() - startedMs) / 1000;
  say(`${percent((results[0] as TrainingResult).testAccuracy)} test accuracy after ${seconds.toFixed(1)} s`);
  say(await compareWithSingleProcess(results, digits, settings));
}

/** Train on one rank; rank 0 prints a line per epoch, made of what the world's events say. */
function trainWithProgress(world: World, digits: Digits, settings: Settings): Promise<TrainingResult> {
  let bytesSent = 0;
  world.on('collectiveEnd', (event) => {
    bytesSent += event.bytes;
  });
  let lastMs = performance.now();
  return trainDigits(world, digits, settings, (report) => {
    const nowMs = performance.now();
    if (world.isMain) say(progressLine(report, nowMs - lastMs, bytesSent));
    lastMs = nowMs;
  });
}

function progressLine(
  { epoch, loss, trainAccuracy, testAccuracy }: EpochReport,
  durationMs: number,
  bytes: number,
): string {
  return [
    `epoch ${String(epoch).padStart(2)}`,
    `loss ${loss.toFixed(4)}`,
    `train ${percent(trainAccuracy)}`,
    `test ${percent(testAccuracy)}`,
    `${(durationMs / 1000).toFixed(2)} s`,
    `${(bytes / 1e6).toFixed(2)} MB sent per rank so far`,
  ].join('  ');
}

/** One line: do the ranks agree to the bit, and how far is a single process on the whole batches from them? */
async function compareWithSingleProcess(
  results: readonly TrainingResult[],
  digits: Digits,
  settings: Settings,
): Promise<string> {
  const worldSize = results.length;
  const first = (results[0] as TrainingResult).parameters;
  const differing = results.filter(
    ({ parameters }) => !Buffer.from(parameters.buffer).equals(Buffer.from(first.buffer)),
  );
  const [single] = await runWorld(1, (world) => trainDigits(world, digits, settings, undefined, worldSize));
  const reference = (single as TrainingResult).parameters;
  const distance = first.reduce((most, value, i) => Math.max(most, Math.abs(value - (reference[i] as number))), 0);
  const agreement =
    differing.length === 0
      ? `all ${worldSize} ranks hold the same parameter bits`
      : `${differing.length} of ${worldSize} ranks differ from rank 0`;
  return `${agreement}; a single process on the same batches ends at most ${distance.toExponential(1)} away in any of ${first.length} parameters, at ${percent((single as TrainingResult).testAccuracy)} test accuracy`;
}

function readArguments(): { worldSize: number; settings: Settings } {
  const { values } = parseArgs({ options: { world: { type: 'string', default: '4' }, epochs: { type: 'string' } } });
  return {
    worldSize: wholeNumber('--world', values.world),
    settings:
      values.epochs === undefined
        ? defaultSettings
        : { ...defaultSettings, epochs: wholeNumber('--epochs', values.epochs) },
  };
}

function wholeNumber(flag: string, text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new Error(`${flag}: expected a whole number of 1 or more, got '${text}'.`);
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

main().catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
});
