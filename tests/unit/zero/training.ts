/** The same training with DistributedDataParallel and with zeroWrap at any stage, so that their bits can be compared. */
import { Generator } from '../../../src/core/generator';
import { bytesOf } from '../../../src/core/dtype';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import type { AnyModule } from '../../../src/nn/any-module';
import type { Optimizer } from '../../../src/optim/optimizer';
import type { World } from '../../../src/process-group/world';
import type { Tensor } from '../../../src/tensor/tensor';
import type { MockBackend } from '../../../src/backend/mock/mock-backend';
import { withFullParameters } from '../../../src/zero/full-parameters';
import { zeroWrap } from '../../../src/zero/zero';
import type { ZeroOptions } from '../../../src/zero/zero-options';

/** 'ddp', or a stage of zeroWrap. */
export type Way = 'ddp' | 0 | 1 | 2 | 3;

/** What a training loop needs, the same for every way. */
export interface Trained<M extends AnyModule> {
  readonly model: M;
  readonly module: {
    noSync<R>(fn: () => Promise<R>): Promise<R>;
    syncGradients(): Promise<void>;
    zeroGrad(): void;
    train(mode?: boolean): unknown;
    eval(): unknown;
  };
  readonly forward: M['forward'];
  /** All parameters, in order, also where a rank holds only parts. */
  readonly bits: () => Promise<string[]>;
  readonly optimizer: {
    readonly paramGroups: readonly { lr: number }[];
    step(): Promise<void>;
    zeroGrad(): void;
    clipGradNorm(maxNorm: number, options?: { normType?: number }): Promise<number>;
  };
}

/** Wrap a model in one of the ways; unused parameters are allowed in all of them. */
export async function wrap<M extends AnyModule>(
  way: Way,
  model: M,
  optimizerFor: (model: M) => Optimizer,
  world: World,
  options: ZeroOptions = {},
): Promise<Trained<M>> {
  const optimizer = optimizerFor(model);
  if (way === 'ddp') {
    const ddp = new DistributedDataParallel(model, world.group, { findUnusedParameters: true });
    const bits = async (): Promise<string[]> => bitsOf(model.parameters());
    return { model, module: ddp, forward: ddp.forward.bind(ddp), bits, optimizer };
  }
  const wrapped = await zeroWrap(model, optimizer, world.group, { stage: way, ...options });
  const forward = wrapped.module.forward.bind(wrapped.module) as unknown as M['forward'];
  const bits = (): Promise<string[]> => withFullParameters(wrapped.module, () => bitsOf(model.parameters()));
  return { model, module: wrapped.module, forward, bits, optimizer: wrapped.optimizer };
}

/** All bytes of the tensors, as a string that tells where two differ. */
export function bitsOf(tensors: readonly Tensor[]): string[] {
  return tensors.map((tensor) => Buffer.from(bytesOf(tensor.storage.buffer)).toString('hex'));
}

/** Small random numbers, the same for the same seed. */
export function numbers(seed: number, count: number): number[] {
  const generator = new Generator(seed);
  return Array.from({ length: count }, () => generator.nextNormal());
}

export type Program<R> = (world: World, backend: MockBackend) => Promise<R>;
