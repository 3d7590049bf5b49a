/** Models of stage 3 for tests, and what a rank holds of them. */
import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { AdamW } from '../../../src/optim/adam';
import type { AnyModule } from '../../../src/nn/any-module';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { zeroWrap, type ZeroWrapped } from '../../../src/zero/zero';
import type { ZeroOptions } from '../../../src/zero/zero-options';

/** Elements on a side of a layer: a layer has WIDTH * WIDTH, which 1, 2, 3 and 4 ranks divide. */
export const WIDTH = 12;
export const LAYER_BYTES = 4 * WIDTH * WIDTH;

export function layer(generator?: Generator): Linear {
  return new Linear(WIDTH, WIDTH, { bias: false, generator });
}

/** Layers one after the other, in an array of a module whose own forward calls them. */
export class Stack extends Module {
  readonly layers: Linear[];

  constructor(depth: number, seed = 1) {
    super();
    const generator = new Generator(seed);
    this.layers = Array.from({ length: depth }, () => layer(generator));
  }

  override async forward(x: Tensor): Promise<Tensor> {
    let y = x;
    for (const next of this.layers) y = (await next.forward(y)).tanh();
    return y;
  }
}

/** The module with every layer a unit of its own. */
export function wrapUnits<M extends AnyModule>(
  model: M | (() => M),
  group: ProcessGroup,
  options: ZeroOptions = {},
): Promise<ZeroWrapped<M, { lr: number }>> {
  const optimizer = (built: M): AdamW => new AdamW(built.parameters(), { lr: 0.01 });
  return zeroWrap<M, { lr: number }>(model, optimizer, group, { stage: 3, mergeThreshold: 0, ...options });
}

export function batch(seed: number, requiresGrad = false): Tensor {
  return Tensor.randn([2, WIDTH], { generator: new Generator(seed), requiresGrad });
}

/** Bytes of parameters that this rank holds now. */
export function parameterBytes(): number {
  return memory.stats().live.parameters;
}

/** The most that it has held since the last reset. */
export function peakParameterBytes(): number {
  return memory.stats().peak.parameters;
}
