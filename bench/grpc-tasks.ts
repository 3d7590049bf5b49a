/** What a rank process of bench/grpc.ts does. */
import { readFileSync } from 'node:fs';
import {
  DistributedDataParallel,
  Generator,
  Linear,
  ReLU,
  SGD,
  Sequential,
  Tensor,
  crossEntropy,
  type Module,
} from 'lockstep';
import { currentWorld, worldTasks } from '../tests/helpers/process-world';

export interface Measure {
  readonly bytes: number;
  readonly iterations: number;
  readonly blocks: number;
}

const BATCH = 64;

function buildModel(): Sequential {
  const generator = new Generator(1);
  return new Sequential(
    new Linear(784, 1024, { generator }),
    new ReLU(),
    new Linear(1024, 1024, { generator }),
    new ReLU(),
    new Linear(1024, 10, { generator }),
  );
}

export const tasks = {
  ...worldTasks,

  /** Microseconds of one all-reduce, by block of `iterations`, one block of warm-up before. */
  async measure({ bytes, iterations, blocks }: Measure): Promise<number[]> {
    const { backend } = currentWorld().group;
    const data = new Float32Array(bytes / 4);
    const times: number[] = [];
    for (let block = -1; block < blocks; block++) {
      await backend.barrier();
      const start = performance.now();
      for (let i = 0; i < iterations; i++) await backend.allReduce(data, 'Sum');
      if (block >= 0) times.push((1000 * (performance.now() - start)) / iterations);
    }
    return times;
  },

  /** Bytes by which the resident memory of this process had grown at its peak, the buffer of `bytes` included. */
  async peakMemory({ bytes }: { readonly bytes: number }): Promise<number> {
    const { backend } = currentWorld().group;
    await backend.allReduce(new Float32Array(1000), 'Sum');
    const before = process.memoryUsage.rss();
    const data = new Float32Array(bytes / 4).fill(1);
    for (let round = 0; round < 3; round++) await backend.allReduce(data, 'Sum');
    return peakResidentBytes() - before;
  },

  /** Milliseconds of each training step, with DDP in a world or without. */
  async train({
    steps,
    isDistributed,
  }: {
    readonly steps: number;
    readonly isDistributed: boolean;
  }): Promise<number[]> {
    const model = buildModel();
    const ddp = isDistributed ? new DistributedDataParallel(model, currentWorld().group) : undefined;
    const trained: Module = ddp ?? model;
    const optimizer = new SGD([...model.parameters()], { lr: 0.01 });
    const generator = new Generator(2);
    const input = Tensor.randn([BATCH, 784], { generator });
    const labels = Tensor.from(Int32Array.from({ length: BATCH }, () => generator.nextBelow(10)));
    const times: number[] = [];
    for (let step = 0; step < steps; step++) {
      const start = performance.now();
      await crossEntropy(await trained.forward(input), labels).backward();
      await ddp?.syncGradients();
      await optimizer.step();
      optimizer.zeroGrad();
      times.push(performance.now() - start);
    }
    return times;
  },
};

/**
 * The most resident memory that this process has had. Linux counts the moment before a child becomes a program of its own in
 * `maxRSS`, when it is still as large as its parent; /proc does not.
 */
function peakResidentBytes(): number {
  try {
    const [, kib] = /^VmHWM:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? [];
    if (kib !== undefined) return Number(kib) * 1024;
  } catch {
    // no /proc: another system
  }
  return process.resourceUsage().maxRSS * 1024;
}
