/** Timing that survives a noisy machine: the two sides of a ratio alternate in one run; medians and spread are printed. */

export interface Timing {
  readonly medianMs: number;
  /** Half the distance between the quartiles, as a share of the median. */
  readonly spread: number;
}

export interface Comparison {
  readonly subject: Timing;
  readonly reference: Timing;
  /** Median of the ratios of neighbouring runs, so that slow drift of the machine cancels out. */
  readonly ratio: number;
}

type Run = () => void | Promise<void>;

/** Time `subject` and `reference` in turn, `rounds` times each, after two warm-up rounds. */
export async function compare(subject: Run, reference: Run, rounds: number): Promise<Comparison> {
  const subjectMs: number[] = [];
  const referenceMs: number[] = [];
  for (let round = -2; round < rounds; round++) {
    const a = await time(subject);
    const b = await time(reference);
    if (round < 0) continue;
    subjectMs.push(a);
    referenceMs.push(b);
  }
  const ratios = subjectMs.map((ms, i) => ms / (referenceMs[i] as number));
  return { subject: summarise(subjectMs), reference: summarise(referenceMs), ratio: quantile(ratios, 0.5) };
}

/** Milliseconds of one call. */
export async function time(run: Run): Promise<number> {
  const startedMs = performance.now();
  await run();
  return performance.now() - startedMs;
}

export function summarise(samplesMs: readonly number[]): Timing {
  const medianMs = quantile(samplesMs, 0.5);
  return { medianMs, spread: (quantile(samplesMs, 0.75) - quantile(samplesMs, 0.25)) / 2 / medianMs };
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] as number;
}

/** One line of the report; `target` is what the figure is held against. */
export function report(name: string, figure: string, target: string): void {
  process.stdout.write(`${name.padEnd(58)} ${figure.padStart(26)}   target: ${target}\n`);
}

export function describe({ medianMs, spread }: Timing): string {
  return `${medianMs.toFixed(1)} ms ±${(100 * spread).toFixed(0)} %`;
}
