/**
 * The training of train.ts, on one process a rank, with the same result to the bit.
 *
 *     npx lockstep run --nproc 4 examples/digits/launched.ts
 *     npx lockstep run --nproc 4 examples/digits/launched.ts --epochs 5
 */
import { createHash } from 'node:crypto';
import { parseArgs } from 'node:util';
import { World } from 'lockstep';
import { loadDigits } from './dataset';
import { percent, say, trainWithProgress, wholeNumber } from './progress';
import { defaultSettings, type Settings, type TrainingResult } from './training';

async function main(): Promise<void> {
  const settings = readSettings();
  const world = await World.init();
  try {
    const startedMs = performance.now();
    const result = await trainWithProgress(world, loadDigits(), settings);
    const digests = await world.group.allGatherObjects(digest(result.parameters));
    if (world.isMain) report(result, digests, performance.now() - startedMs);
  } finally {
    await world.close();
  }
}

function report({ finalLoss, testAccuracy }: TrainingResult, digests: readonly string[], durationMs: number): void {
  say(`${percent(testAccuracy)} test accuracy after ${(durationMs / 1000).toFixed(1)} s, final loss ${finalLoss}`);
  const differing = digests.filter((each) => each !== digests[0]).length;
  say(
    differing === 0
      ? `all ${digests.length} ranks hold the same parameter bits, sha256 ${digests[0]}`
      : `${differing} of ${digests.length} ranks differ from rank 0`,
  );
}

function digest(parameters: Float32Array): string {
  return createHash('sha256').update(Buffer.from(parameters.buffer)).digest('hex');
}

function readSettings(): Settings {
  const { values } = parseArgs({ options: { epochs: { type: 'string' } } });
  return values.epochs === undefined
    ? defaultSettings
    : { ...defaultSettings, epochs: wholeNumber('--epochs', values.epochs) };
}

// An error that nobody catches ends the process with it, and the launcher says which rank it was.
void main();
