/** The matrix product against the naive triple loop. */
import { Generator, Tensor, noGrad } from 'lockstep';
import { compare, report } from './measure';

const SIZE = 512;

export async function benchMatmul(): Promise<void> {
  const generator = new Generator(3);
  const a = Tensor.randn([SIZE, SIZE], { generator });
  const b = Tensor.randn([SIZE, SIZE], { generator });
  const naive = new Float32Array(SIZE * SIZE);
  const result = await compare(
    () => noGrad(() => a.matmul(b).dispose()),
    () => tripleLoop(a.data as Float32Array, b.data as Float32Array, naive),
    7,
  );
  const gigaflops = (2 * SIZE ** 3) / result.subject.medianMs / 1e6;
  report(
    `matrix product ${SIZE}^3 float32`,
    `${gigaflops.toFixed(1)} GFLOP/s, ${(1 / result.ratio).toFixed(1)}x naive`,
    'at least 3 GFLOP/s',
  );
}

function tripleLoop(a: Float32Array, b: Float32Array, c: Float32Array): void {
  c.fill(0);
  for (let i = 0; i < SIZE; i++) {
    for (let k = 0; k < SIZE; k++) {
      const factor = a[i * SIZE + k] as number;
      for (let j = 0; j < SIZE; j++) {
        c[i * SIZE + j] = (c[i * SIZE + j] as number) + factor * (b[k * SIZE + j] as number);
      }
    }
  }
}
