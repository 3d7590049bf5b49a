/** The 1,797 handwritten digits of data/digits.csv.gz: 64 pixels from 0 to 16, then the label. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Generator, Tensor, TensorDataset } from 'lockstep';

const PIXELS = 64;
const TEST_SAMPLES = 360;
const SPLIT_SEED = 2024;

/** Pixels [samples, 64] and labels [samples]. */
export type Samples = [pixels: Tensor, labels: Tensor];

export interface Digits {
  readonly train: TensorDataset<Samples>;
  readonly test: TensorDataset<Samples>;
}

/** Read the file, scale pixels to 0..1, and hold back 360 samples, chosen with a fixed seed, for the test. */
export function loadDigits(path = join(__dirname, '..', '..', 'data', 'digits.csv.gz')): Digits {
  const lines = gunzipSync(readFileSync(path)).toString('utf8').trim().split('\n');
  const order = new Generator(SPLIT_SEED).permutation(lines.length);
  const rows = order.map((index) => (lines[index] as string).split(',').map(Number));
  return { train: toDataset(rows.slice(TEST_SAMPLES)), test: toDataset(rows.slice(0, TEST_SAMPLES)) };
}

function toDataset(rows: readonly (readonly number[])[]): TensorDataset<Samples> {
  const pixels = Float32Array.from(rows.flatMap((row) => row.slice(0, PIXELS).map((value) => value / 16)));
  const labels = Int32Array.from(rows, (row) => row[PIXELS] as number);
  return new TensorDataset([Tensor.from(pixels, [rows.length, PIXELS]), Tensor.from(labels, [rows.length])]);
}
