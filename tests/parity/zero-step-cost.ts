/** What a step of ZeRO costs each mock rank: bytes held, by category, and bytes sent, by collective. */
import { byteSize } from '../../src/core/dtype';
import { memory, type MemoryCategory } from '../../src/core/memory-account';
import { Adam } from '../../src/optim/adam';
import { Tensor } from '../../src/tensor/tensor';
import { tidy } from '../../src/tensor/tidy';
import { runWorld } from '../../src/testing/index';
import type { ZeroOptions, ZeroPrecision, ZeroStage } from '../../src/zero/zero-options';
import { zeroWrap } from '../../src/zero/zero';
import { equalLayers } from './zero-layers';

/** A model of equal layers, `width` squared parameters each. */
export interface Layers {
  readonly layers: number;
  readonly width: number;
}

export interface StepCost {
  /** Between step and zeroGrad. */
  readonly live: Readonly<Record<MemoryCategory, number>>;
  readonly peak: Readonly<Record<MemoryCategory, number>>;
  /** The most of all categories together. */
  readonly peakTotal: number;
  readonly sent: Readonly<Record<'allReduce' | 'reduceScatter' | 'allGather', number>>;
  /** By all collectives together. */
  readonly sentTotal: number;
}

/** By rank, the second of two steps, with clipping by the norm; each layer is a bucket, or a gathered unit. */
export async function stepCosts(size: number, { layers, width }: Layers, options: ZeroOptions): Promise<StepCost[]> {
  const layerBytes = width * width * byteSize(options.precision ?? 'float32');
  return runWorld(size, async (world, backend) => {
    const { module, optimizer } = await zeroWrap(
      () => equalLayers(layers, width),
      (model) => new Adam(model.parameters()),
      world.group,
      { bucketCapMb: layerBytes / 2 ** 20, mergeThreshold: 0, ...options },
    );
    const step = async (): Promise<void> => {
      await tidy(async () => (await module.forward(Tensor.ones([1, width]))).sum().backward());
      await optimizer.clipGradNorm(1);
      await optimizer.step();
    };
    await step();
    optimizer.zeroGrad();
    if (memory.stats().live.gradients !== 0) throw new Error('zeroGrad has left gradients');
    backend.resetLedger();
    memory.resetPeak();
    await step();
    const { allReduce, reduceScatter, allGather } = backend.ledger;
    return {
      ...memory.stats(),
      peakTotal: memory.totals().peak,
      sent: { allReduce: allReduce.bytes, reduceScatter: reduceScatter.bytes, allGather: allGather.bytes },
      sentTotal: Object.values(backend.ledger).reduce((total, { bytes }) => total + bytes, 0),
    };
  });
}

/** With a loss scale that lets no gradient of these models overflow. */
export function optionsFor(stage: ZeroStage, precision: ZeroPrecision): ZeroOptions {
  return { stage, precision, ...(precision === 'float16' ? { lossScale: { initScale: 16 } } : {}) };
}
