/** A line per epoch, made of what the training reports and of what the world's events say. */
import type { World } from 'lockstep';
import type { Digits } from './dataset';
import { trainDigits, type EpochReport, type Settings, type TrainingResult } from './training';

/** Train on one rank; rank 0 prints a line per epoch. */
export function trainWithProgress(world: World, digits: Digits, settings: Settings): Promise<TrainingResult> {
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

export function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** @param flag names the argument in the message */
export function wholeNumber(flag: string, text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new Error(`${flag}: expected a whole number of 1 or more, got '${text}'.`);
}
