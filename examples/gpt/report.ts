/** What the example prints. */
import { memory, type World } from 'lockstep';
import type { Settings } from './settings';
import type { StepReport, TrainingEvents } from './training';

/** A line for each report of rank 0: loss, speed, bytes sent and bytes held. */
export function progressOf(world: World, settings: Settings): TrainingEvents {
  const tokensPerStep = settings.batch * settings.accumulate * settings.context * world.worldSize;
  let bytesSent = 0;
  world.on('collectiveEnd', (event) => {
    bytesSent += event.bytes;
  });
  let last = { step: 0, ms: performance.now(), bytes: 0 };
  const sayOnMain = (line: string): void => {
    if (world.isMain) say(line);
  };
  return {
    onStart: (step, parameters) => {
      sayOnMain(
        `${parameters} parameters, ${world.worldSize} rank${world.worldSize === 1 ? '' : 's'}, ZeRO stage ${settings.stage}, ${settings.precision}, ${tokensPerStep} tokens a step${step > 0 ? `, resumed after step ${step}` : ''}`,
      );
      last = { step, ms: performance.now(), bytes: bytesSent };
    },
    onReport: (report) => {
      const now = { step: report.step, ms: performance.now(), bytes: bytesSent };
      const steps = now.step - last.step;
      const tokensPerSecond = (steps * tokensPerStep) / ((now.ms - last.ms) / 1000);
      sayOnMain(progressLine(report, tokensPerSecond, (now.bytes - last.bytes) / steps));
      last = now;
    },
    onSaved: (path) => sayOnMain(`saved ${path}`),
  };
}

function progressLine({ step, loss, gradientNorm }: StepReport, tokensPerSecond: number, bytesPerStep: number): string {
  return [
    `step ${String(step).padStart(5)}`,
    `loss ${loss.toFixed(4)}`,
    `norm ${gradientNorm.toFixed(3)}`,
    `${tokensPerSecond.toFixed(0)} tokens/s`,
    `${megabytes(bytesPerStep)} MB sent a step`,
    memoryColumns(),
  ].join('  ');
}

/** Bytes held by this rank, by what for: now, and at most since the last line. */
function memoryColumns(): string {
  const { live, peak } = memory.stats();
  memory.resetPeak();
  const columns = Object.entries(live)
    .map(([category, bytes]) => ({ category, bytes, most: peak[category as keyof typeof peak] }))
    .filter(({ most }) => most > 0)
    .map(({ category, bytes, most }) => `${category} ${megabytes(bytes)}/${megabytes(most)}`);
  return `MB live/peak: ${columns.join(', ')}`;
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(2);
}

export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}
