/** A small training, of which state and bits are compared where shards are on a device. */
import { AdamW } from '../../../src/optim/adam';
import type { Optimizer } from '../../../src/optim/optimizer';
import type { World } from '../../../src/process-group/world';
import { withFullParameters } from '../../../src/zero/full-parameters';
import type { ZeroOptions } from '../../../src/zero/zero-options';
import { zeroWrap } from '../../../src/zero/zero';
import { Mlp, batchOf, lossOf } from '../ddp/models';
import { bitsOf } from './training';

export const adamW = (model: Mlp): AdamW => new AdamW(model.parameters(), { lr: 0.05 });

interface Wrapped {
  readonly module: { readonly forward: Mlp['forward'] };
  readonly optimizer: { step(): Promise<void>; zeroGrad(): void };
}

export async function train({ module, optimizer }: Wrapped, seeds: readonly number[]): Promise<void> {
  for (const seed of seeds) {
    await (await lossOf(module as Mlp, batchOf(seed, 4))).backward();
    await optimizer.step();
    optimizer.zeroGrad();
  }
}

/** With `snapshot`: the bits of all parameters, and the whole optimizer state. */
export async function wrap(
  world: World,
  options: ZeroOptions,
  seed = 1,
  optimizerFor: (model: Mlp) => Optimizer = adamW,
) {
  const { module, optimizer } = await zeroWrap(new Mlp(seed), optimizerFor, world.group, options);
  const snapshot = async () => ({
    bits: await withFullParameters(module, () => bitsOf(module.parameters())),
    state: await optimizer.stateDict(),
  });
  return { module, optimizer, snapshot };
}
