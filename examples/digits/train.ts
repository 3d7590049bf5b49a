/**
 * Train a small network on real handwritten digits, on mock ranks in this one process.
 *
 *     npm start                    4 ranks
 *     npm start -- --world 7       1, 2, 4, 7, ... ranks
 */
import { parseArgs } from 'node:util';
import { runWorld } from 'lockstep/testing';
import { loadDigits, type Digits } from './dataset';
import { percent, say, trainWithProgress, wholeNumber } from './progress';
import { defaultSettings, trainDigits, type Settings, type TrainingResult } from './training';

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

main().catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
});
