/** A training in a process of its own, whose memory is measured. The process runs with --expose-gc. */
import { memory } from '../../src/core/memory-account';
import { AdamW } from '../../src/optim/adam';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { tidy } from '../../src/tensor/tidy';
import { withFullParameters } from '../../src/zero/full-parameters';
import type { ZeroOptions } from '../../src/zero/zero-options';
import { zeroWrap } from '../../src/zero/zero';
import { equalLayers } from './zero-layers';

export interface MemoryArgs {
  readonly layers: number;
  readonly width: number;
  readonly steps: number;
  readonly options: ZeroOptions;
}

/** Bytes after a forced collection. */
export interface Held {
  /** What the process has in typed arrays, beyond what it had before the model. */
  readonly arrayBuffers: number;
  /** Resident memory, beyond what it was before the model. */
  readonly resident: number;
  /** What the account of tensors says. */
  readonly accounted: number;
}

export interface MemoryRun {
  readonly wrapped: Held;
  /** After each step, before and after its zeroGrad. */
  readonly stepped: readonly Held[];
  readonly zeroed: readonly Held[];
  readonly insideFullParameters: Held;
  readonly afterFullParameters: Held;
}

/** Collections in a row that find nothing more: finalizers have run by then, and threads that free memory. */
const QUIET_ROUNDS = 2;

async function collectGarbage(): Promise<void> {
  if (globalThis.gc === undefined) throw new Error('start this process with --expose-gc');
  let least = Infinity;
  for (let quiet = 0; quiet < QUIET_ROUNDS; quiet++) {
    globalThis.gc();
    await new Promise((settle) => setTimeout(settle, 20));
    const held = process.memoryUsage().arrayBuffers + memory.totals().live;
    if (held < least) quiet = 0;
    least = Math.min(least, held);
  }
}

export async function trainMeasured(world: World, { layers, width, steps, options }: MemoryArgs): Promise<MemoryRun> {
  await collectGarbage();
  const before = process.memoryUsage();
  await world.barrier(); // a rank that is ahead sends what the others have to keep for later
  const accountedBefore = memory.totals().live;
  const held = async (): Promise<Held> => {
    await collectGarbage();
    const now = process.memoryUsage();
    await world.barrier();
    return {
      arrayBuffers: now.arrayBuffers - before.arrayBuffers,
      resident: now.rss - before.rss,
      accounted: memory.totals().live - accountedBefore,
    };
  };
  const { module, optimizer } = await zeroWrap(
    () => equalLayers(layers, width),
    (model) => new AdamW(model.parameters()),
    world.group,
    options,
  );
  const wrapped = await held();
  const stepped: Held[] = [];
  const zeroed: Held[] = [];
  for (let step = 0; step < steps; step++) {
    await tidy(async () => (await module.forward(Tensor.ones([1, width]))).sum().backward());
    await optimizer.step();
    stepped.push(await held());
    optimizer.zeroGrad();
    zeroed.push(await held());
  }
  const insideFullParameters = await withFullParameters(module, held);
  return { wrapped, stepped, zeroed, insideFullParameters, afterFullParameters: await held() };
}
